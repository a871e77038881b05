"""Compilers in a scratch folder: NVIDIA's from PyPI, Triton and Numba. Nothing is installed outside of it."""

import subprocess
import sys
from pathlib import Path

CUDA = "13.0.88"
PACKAGES = ["numpy", "ml_dtypes", "scipy", f"nvidia-cuda-nvcc=={CUDA}", f"nvidia-cuda-runtime=={CUDA}", f"nvidia-cuda-crt=={CUDA}",
            f"nvidia-nvvm=={CUDA}", "nvidia-cuda-cccl==13.0.*", f"nvidia-cuda-nvrtc=={CUDA}", "triton", "numba-cuda"]


class Toolchain:
    def __init__(self, scratch):
        self.scratch = Path(scratch).resolve()
        self.python = self.scratch / "venv/bin/python"

    def install(self):
        """Makes the folder on the first run."""
        if not self.python.exists():
            self.scratch.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, "-m", "venv", self.scratch / "venv"], check=True)
        done = self.scratch / "installed"
        if not done.exists() or done.read_text() != " ".join(PACKAGES):
            subprocess.run([self.python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
            done.write_text(" ".join(PACKAGES))

    @property
    def cuda(self):
        return next((self.scratch / "venv/lib").glob("python*/site-packages/nvidia/cu13"))

    def nvcc(self, source, target, options, output):
        """Compiles CUDA C++ to PTX."""
        command = [self.cuda / "bin/nvcc", "-ptx", f"-arch={target}", f"-I{self.cuda}/include/cccl", "-diag-suppress=20054", *options,
                   source, "-o", output]
        return subprocess.run(command, capture_output=True, text=True)

    def ptxas(self, ptx, target):
        """None if the assembler takes the text, else its first complaint."""
        command = [self.cuda / "bin/ptxas", f"-arch={target}", ptx, "-o", "/dev/null"]
        result = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in result.stderr.splitlines() if "error" in line or "fatal" in line]
        return None if result.returncode == 0 else (lines or ["?"])[0]
