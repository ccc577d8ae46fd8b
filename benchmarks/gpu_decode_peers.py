"""What sampled decode on a GPU is measured against: torch's dense attention, FlashInfer, and the paper authors' own kernels.

None of their code is ours: FlashInfer is used where it is installed, the authors' kernels (github.com/OPUSLab/SANTA) are built
from a checkout whose path is given.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SDPA = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION}
AUTHORS = {"prop": "santa_fused_proportional_tile_budgets", "flash": "flash_style_fused_santa_fixed_tile_budgets"}
PAGE = 16  # keys of a page of FlashInfer's batch decode


def sdpa_calls(q, k, v) -> dict[str, Callable]:
    """torch's back ends on q [B, H, d] and k, v [B, n, H_kv, d]; KV heads shared, or a head's queries as rows of it."""
    H_kv, d = k.shape[2:]
    rows = {"": (q[:, :, None], True), ", group as query rows": (q.view(len(q), H_kv, -1, d), False)}
    transposed = k.transpose(1, 2), v.transpose(1, 2)

    def call(backend, queries, shared):
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(queries, *transposed, enable_gqa=shared)

    return {name + how: functools.partial(call, backend, *given) for name, backend in SDPA.items() for how, given in rows.items()}


def flashinfer_calls(q, k, v) -> dict[str, Callable]:
    """FlashInfer's single decode (batch 1) or batch decode on a paged view of the same cache, without and with tensor cores."""
    try:
        import flashinfer
    except ImportError:
        print("FlashInfer is not installed")
        return {}
    B, n, H_kv, d = k.shape
    if B == 1:
        return {f"FlashInfer single decode{', tensor cores' * cores}":
                functools.partial(flashinfer.single_decode_with_kv_cache, q[0], k[0], v[0], kv_layout="NHD", use_tensor_cores=cores)
                for cores in (False, True)}  # fmt: skip
    calls = {}
    pages = tuple(x.view(B * n // PAGE, PAGE, H_kv, d) for x in (k, v))
    each = n // PAGE
    for cores in (False, True):
        workspace = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=cores)
        wrapper.plan(torch.arange(0, B * each + 1, each, dtype=torch.int32), torch.arange(B * each, dtype=torch.int32, device="cuda"),
                     torch.full((B,), PAGE, dtype=torch.int32), q.shape[1], H_kv, d, PAGE, q_data_type=q.dtype, kv_data_type=k.dtype)  # fmt: skip
        calls[f"FlashInfer batch decode{', tensor cores' * cores}"] = functools.partial(wrapper.run, q, pages)
    return calls


@functools.cache
def build_authors(path: Path, form: str):
    """The authors' extension, 'prop' or 'flash', compiled for this GPU from a checkout of their repository."""
    from torch.utils import cpp_extension

    os.environ["TORCH_CUDA_ARCH_LIST"] = "{}.{}".format(*torch.cuda.get_device_capability())
    sources = [str(path / AUTHORS[form] / name) for name in ("santa_cuda.cpp", "santa_cuda_kernel.cu")]
    return cpp_extension.load(f"authors_{form}", sources, extra_cflags=["-O3"], extra_cuda_cflags=["-O3"])


def author_calls(path: Path, q, k, v) -> dict[str, Callable]:
    """The authors' kernels at the paper's budgets; prop takes one sequence."""
    calls = {}
    if len(q) == 1:
        prop = build_authors(path, "prop").decode_systematic_scalar
        calls["authors' prop, S = 128"] = lambda: prop(q[0], k[0], v[0], 128)[0]
    flash = build_authors(path, "flash").decode_systematic_batched
    calls["authors' flash, S = 2048"] = lambda: flash(q, k, v, 2048)[0]
    return calls
