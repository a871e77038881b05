"""The sources: which state of them is measured, and their text, as data."""

from __future__ import annotations

import subprocess
from pathlib import Path


def text(project: Path) -> bytes:
    """The bytes of the crates' sources."""
    return b"".join(path.read_bytes() for path in sorted(project.glob("crates/*/src/**/*.rs")))


def commit() -> str:
    """git's HEAD, or nothing where there is no repository."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
