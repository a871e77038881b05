#!/usr/bin/env python3
"""Installed sizes of our package and of those it stands beside.

    python3 bench/install_sizes.py [--out bench/data/sizes/NAME.jsonl] [FILE ...]

A package counts all files of its distribution. Of the files that are named, a wheel counts what it unpacks to, anything else
(the command-line binary, a folder) what it is.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import zipfile
from pathlib import Path
from typing import Any

PACKAGES = ["warpwright", "torch", "triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cublas", "bitsandbytes",
            "liger_kernel", "cupy-cuda13x"]


def of_file(path: Path) -> tuple[str, str, int]:
    if path.suffix == ".whl":
        name, version = path.name.split("-")[:2]
        with zipfile.ZipFile(path) as wheel:
            return name, version, sum(entry.file_size for entry in wheel.infolist())
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return f"{path.name} (file)", "-", sum(p.stat().st_size for p in files)


def of_package(name: str) -> tuple[str, str, int]:
    distribution = importlib.metadata.distribution(name)
    paths = [Path(str(distribution.locate_file(f))) for f in distribution.files or []]
    return name, distribution.version, sum(p.stat().st_size for p in paths if p.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    args = parser.parse_args()
    found = [of_file(path) for path in args.files]
    for package in PACKAGES:
        try:
            found.append(of_package(package))
        except importlib.metadata.PackageNotFoundError:
            continue
    rows: list[dict[str, Any]] = []
    for name, version, size in found:
        print(f"{name + ' ' + version:<50}{size / 1e6:>10.2f} MB")
        rows.append({"package": name, "version": version, "megabytes": size / 1e6,
                     "date": datetime.date.today().isoformat()})
    if args.out:
        args.out.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
