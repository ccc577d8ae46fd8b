"""Dense peers in the same run: torch's scaled_dot_product_attention (flash, cuDNN) and FlashInfer, where installed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from . import device
from .validate_cells import H_KV, D, H, Inputs, widened
from .validate_measure import exact_weights, weighted
from .validate_timing import measure


def why_none() -> str | None:
    """What is missing for torch's peers, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed, so there is no dense peer"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU, so there is no dense peer"
    return None


def versions() -> dict[str, str]:
    """Versions of the peers found."""
    found = {}
    for name in ("torch", "flashinfer"):
        try:
            found[name] = str(__import__(name).__version__)
        except (ImportError, AttributeError, OSError, RuntimeError):
            continue
    return found


def as_torch(inputs: Inputs):
    """q, k, v as torch tensors over the same memory."""
    import torch

    def tensor(x):
        if inputs.precision == "fp16":
            return torch.from_dlpack(x)
        return torch.from_dlpack(x.view(device.require_cupy().int16)).view(torch.bfloat16)

    return [tensor(x) for x in (inputs.q, inputs.k, inputs.v)]


def calls(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """Name of each peer -> a call that gives [B, H, d] in some shape."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = as_torch(inputs)
    transposed = k.transpose(1, 2), v.transpose(1, 2)

    def sdpa(backend, rows, enable_gqa):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(rows, *transposed, enable_gqa=enable_gqa)

    as_rows = q.view(len(q), H_KV, H // H_KV, D)
    found = {
        "SDPA flash": functools.partial(sdpa, SDPBackend.FLASH_ATTENTION, q[:, :, None], True),
        "SDPA flash, group as query rows": functools.partial(sdpa, SDPBackend.FLASH_ATTENTION, as_rows, False),
        "SDPA cuDNN": functools.partial(sdpa, SDPBackend.CUDNN_ATTENTION, q[:, :, None], True),
    }
    if len(q) == 1:
        try:
            from flashinfer import single_decode_with_kv_cache as single
        except (ImportError, OSError, RuntimeError):
            return found
        for name, cores in (("FlashInfer", False), ("FlashInfer, tensor cores", True)):
            found[name] = functools.partial(single, q[0], k[0], v[0], kv_layout="NHD", use_tensor_cores=cores)
    return found


def measure_peers(inputs: Inputs, flush) -> list[dict]:
    """Times and errors of each peer on these inputs; one that fails is a record with `error`."""
    import torch

    first = [x[:1] for x in (inputs.q, inputs.k, inputs.v)]
    reference = weighted(exact_weights(first), first[2])
    base = {"n_k": inputs.k.shape[1], "batch": inputs.k.shape[0], "precision": inputs.precision}
    records = []
    for name, call in calls(inputs).items():
        record = {"name": name, **base}
        try:
            result = call()
            first_result = (result if name.startswith("FlashInfer") else result[0]).reshape(H, D)
            bits = first_result.contiguous().view(torch.int16) if inputs.precision == "bf16" else first_result.contiguous()
            array = device.require_cupy().from_dlpack(bits)
            array = array.view(device.require_cupy().uint16) if inputs.precision == "bf16" else array
            norm = device.require_cupy().linalg.norm
            record["relative_l2"] = float(norm(widened(array) - reference) / norm(reference))
            record["as_called"] = dataclasses.asdict(measure(call, flush))
            record["graph"] = dataclasses.asdict(measure(torch_graph(call), flush))
        except Exception as error:  # noqa: BLE001  a peer may refuse a shape in its own way; the rest goes on
            record["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        records.append(record)
    return records


def torch_graph(call: Callable[[], object]) -> Callable[[], object]:
    """A closure that replays a torch call from a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay
