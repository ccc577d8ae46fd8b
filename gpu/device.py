"""What the back end needs from CUDA: CuPy, tensors through DLPack, and launches with attributes."""

from __future__ import annotations

import ctypes
import functools
import sys

from ..errors import InputError

_INSTALL = 'pip install "santa-sim[gpu]" (CUDA 13) or "santa-sim[gpu-cuda12]" (CUDA 12)'
_CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 4, 6  # CUlaunchAttributeID in cuda.h


def require_cupy():
    """CuPy with at least one GPU.

    Raises
    ------
    InputError
        CuPy isn't installed, or it finds no GPU; says what to install.
    """
    try:
        import cupy
    except ImportError:
        raise InputError(f"kernel='gpu' needs CuPy: {_INSTALL}; without a GPU use kernel='cpu'") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"kernel='gpu' needs an NVIDIA GPU and its driver; CUDA says: {error}. Use kernel='cpu'") from None
    if count == 0:
        raise InputError("kernel='gpu' needs an NVIDIA GPU; this machine has none. Use kernel='cpu'")
    return cupy


@functools.cache
def capability(device: int) -> int:
    """Compute capability, 90 for 9.0."""
    cupy = require_cupy()
    return int(cupy.cuda.Device(device).compute_capability)


@functools.cache
def attribute(device: int, name: str) -> int:
    """A property of the GPU by CuPy's name for it, such as 'MultiProcessorCount'."""
    return int(require_cupy().cuda.Device(device).attributes[name])


class _Borrowed:
    """A stream of somebody else's, as CuPy wants it described."""

    def __init__(self, pointer: int):
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


def borrow_stream(pointer: int, number: int):
    """A context in which CuPy works on a stream of the caller's, on GPU `number`."""
    cupy = require_cupy()
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Borrowed(pointer))
    return cupy.cuda.ExternalStream(pointer, number)


def current_stream(*tensors) -> int:
    """The caller's stream: torch's current one if a tensor is torch's, else CuPy's."""
    torch = sys.modules.get("torch")
    for x in tensors:
        if torch is not None and isinstance(x, torch.Tensor):
            return torch.cuda.current_stream(x.device).cuda_stream
    return require_cupy().cuda.get_current_stream().ptr


def as_cupy(name: str, x):
    """A CuPy array over the same memory: from CuPy, or from anything that speaks DLPack.

    bfloat16 comes as int16, since CuPy's DLPack refuses it.

    Raises
    ------
    InputError
        Not an array on a GPU.
    """
    cupy = require_cupy()
    if isinstance(x, cupy.ndarray):
        return x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if not x.is_cuda:
            raise InputError(f"{name} is on {x.device}; move it to the GPU: {name}.cuda()")
        return cupy.from_dlpack(x.detach().view(torch.int16) if x.dtype == torch.bfloat16 else x.detach())
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array_interface__"):
        return cupy.from_dlpack(x)
    raise InputError(f"{name} is a {type(x).__name__}; use a CuPy array or a torch tensor on the GPU")


def identity(x) -> tuple | None:
    """What tells an array's memory, shape, strides and type from another's; cheap to compare."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.data_ptr(), x.shape, x.stride(), x.dtype
    if isinstance(x, require_cupy().ndarray):
        return x.data.ptr, x.shape, x.strides, x.dtype
    return None if x is None else (object(),)  # never the same


def element_type(x) -> str:
    """'bf16', 'fp16' or the dtype's own name; integers of 16 bits are taken for bfloat16 (CuPy has none)."""
    name = str(x.dtype).removeprefix("torch.")
    return {"bfloat16": "bf16", "int16": "bf16", "uint16": "bf16", "float16": "fp16"}.get(name, name)


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("n_attributes", ctypes.c_uint),
    )  # fmt: skip


@functools.cache
def _driver():
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = (ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
    return library


class Launch:
    """A CuPy RawKernel with ctypes arguments, so that each has exactly the type the kernel declares; calling it launches.

    The arguments are read at each call: their `value` may be changed in between.

    after_previous : the blocks may start while the stream's previous kernel ends (programmatic dependent launch)
    cluster : blocks along x that form a cluster; 0 for none
    """

    def __init__(self, kernel, grid: tuple[int, int, int], threads: int, arguments: list, stream: int, shared_bytes: int = 0,
                 after_previous: bool = False, cluster: int = 0):  # fmt: skip
        attributes = (_Attribute * 2)()
        count = 0
        if cluster:
            attributes[count].id = _CLUSTER_DIMENSION
            attributes[count].value[0], attributes[count].value[1], attributes[count].value[2] = cluster, 1, 1
            count += 1
        if after_previous:
            attributes[count].id = _PROGRAMMATIC_SERIALIZATION
            attributes[count].value[0] = 1
            count += 1
        self._config = _Config((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(threads, 1, 1), shared_bytes, stream, attributes, count)
        self._pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(x) for x in arguments))
        self._kept = arguments, attributes, kernel
        self._given = ctypes.byref(self._config), kernel.kernel.ptr, self._pointers, None

    def __call__(self) -> None:
        """Raises RuntimeError if the driver refuses."""
        status = _driver().cuLaunchKernelEx(*self._given)
        if status:
            shape = tuple(self._config.grid), self._config.block[0], self._config.shared_bytes
            raise RuntimeError("CUDA error {}: refuses a launch of grid {}, {} threads, {} B of shared memory".format(status, *shape))


def launch(kernel, grid: tuple[int, int, int], threads: int, arguments: list, stream: int, shared_bytes: int = 0,
           after_previous: bool = False, cluster: int = 0) -> None:  # fmt: skip
    """Launch once; the arguments are those of `Launch`."""
    Launch(kernel, grid, threads, arguments, stream, shared_bytes, after_previous, cluster)()
