"""The modules of the native half take from those above them alone, in the order that `lib.rs` gives."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"


def test_modules_take_from_those_above_them():
    rows = re.findall(r"^//! \| (`.*?) \|", (SOURCES / "lib.rs").read_text(encoding="utf-8"), re.MULTILINE)
    level = {name: at for at, row in enumerate(rows) for name in re.findall(r"`(\w+)`", row)}
    files = {path.stem: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.rs") if path.stem != "lib"}
    assert set(level) == set(files)
    for name, text in files.items():
        for other in set(re.findall(r"crate::(\w+)", text)):
            assert level[other] < level[name], f"{name} takes from {other}"
