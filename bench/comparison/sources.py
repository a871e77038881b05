"""Which state of the sources is measured."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """git's HEAD, or nothing where there is no repository."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
