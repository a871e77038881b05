"""The Python lines of the READMEs and of the guide run as they stand, where what they import is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = [
    (path, block)
    for path in ("README.md", "bridges/warpwright-py/README.md", "docs/guide/src/jax.md")
    for block in re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)
    # Blocks that go on from a PTX text which they do not show are held by test_emulator.py.
    if "ptx" not in block
]
# Of the guide to PyTorch those that need no other block, on the CPU as well.
COMPLETE = [
    block
    for block in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/guide/src/pytorch.md").read_text(encoding="utf-8"), re.DOTALL
    )
    if "import torch\n" in block or "import torch," in block
]


@pytest.mark.parametrize("path, block", BLOCKS, ids=[f"{p}-{i}" for i, (p, _) in enumerate(BLOCKS)])
def test_block(path, block):
    if "jax" in block:
        pytest.importorskip("jax", reason="JAX is not installed")
    if "torch" in block:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch sees no GPU")
    exec(compile(block, path, "exec"), {})


@pytest.mark.parametrize("at", range(len(COMPLETE)))
def test_block_of_the_guide_to_pytorch(at):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    exec(compile(COMPLETE[at], "pytorch.md", "exec"), {})


def test_there_are_blocks():
    assert len(BLOCKS) >= 2 and len(COMPLETE) >= 2
