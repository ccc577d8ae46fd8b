"""What the tests of the GPU back end need, or the name of what is missing."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for gpu_inputs


@pytest.fixture(scope="session")
def cupy():
    """CuPy on a machine with a GPU."""
    module = pytest.importorskip("cupy", reason="needs CuPy and an NVIDIA GPU: CuPy is not installed")
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    if count == 0:
        pytest.skip("needs an NVIDIA GPU: none is there")
    return module


@pytest.fixture(scope="session")
def cuda_torch(cupy):
    """torch on a GPU."""
    torch = pytest.importorskip("torch", reason="needs torch with CUDA: torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("needs torch with CUDA: this build of torch sees no GPU")
    return torch


@pytest.fixture(scope="session")
def nvcc():
    """Path of the CUDA compiler."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=str(Path(home) / "bin"))
    if found is None:
        pytest.skip("needs nvcc (the CUDA toolkit): not on the PATH, nor in CUDA_HOME")
    return found
