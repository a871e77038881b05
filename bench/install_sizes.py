#!/usr/bin/env python3
"""Installed sizes of our package and of those it stands beside.

    python3 bench/install_sizes.py [FILE ...]

Files (a wheel, the command-line binary) are listed with their own size. A package counts all files of its distribution.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

PACKAGES = ["warpwright", "torch", "triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cublas", "bitsandbytes",
            "liger_kernel", "cupy-cuda13x"]


def main() -> int:
    for name in sys.argv[1:]:
        path = Path(name)
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        print(f"{path.name:<50}{sum(p.stat().st_size for p in files) / 1e6:>10.2f} MB")
    for package in PACKAGES:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = [Path(str(distribution.locate_file(f))) for f in distribution.files or []]
        size = sum(p.stat().st_size for p in paths if p.is_file())
        print(f"{package + ' ' + distribution.version:<50}{size / 1e6:>10.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
