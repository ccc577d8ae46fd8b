"""One kernel launch as a timing model sees it: a grid, what all its blocks do together, and what one block waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

_EMPTY: Mapping[str, int] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Chain:
    """Things that wait for each other in one block, how many of each.

    dram, l2 : round trips to memory;  stream : trips to a memory that all multiprocessors stream from
    shared, shuffle, barrier, cluster : loads from shared memory, shuffles and votes, barriers of the block and of its cluster
    arithmetic, fp64, special : instructions, one after another (`Cycles` says which are which)
    """

    dram: float = 0
    stream: float = 0
    l2: float = 0
    shared: float = 0
    shuffle: float = 0
    barrier: float = 0
    cluster: float = 0
    arithmetic: float = 0
    fp64: float = 0
    special: float = 0

    def __add__(self, other: Chain) -> Chain:
        return Chain(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __mul__(self, times: float) -> Chain:
        return Chain(*(times * a for a in dataclasses.astuple(self)))


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An intermediate in global memory, by name: bytes that a launch touches of it [B]."""

    name: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel.

    Attributes
    ----------
    name, stages : the kernel; the stages of a trace that it covers
    blocks, threads, registers, shared_bytes : the grid; threads, registers per thread and shared memory of a block
    q_bytes, k_bytes, v_bytes : bytes of the inputs that it is the first to touch, in sectors [B]
    k_requested_bytes : of K with repeats by several queries [B]
    gathered_rows, row_bytes : how many rows v_bytes (or k_bytes, if `gathers` is 'k') are, read at random places;
        0: consecutive bytes
    output_bytes : of the output [B]
    makes, takes : intermediates that it writes, and reads
    keeps_stream_apart : its stream asks to be evicted first, so that intermediates stay
    l2_bytes : all bytes that its blocks ask of the second-level cache [B]
    instructions : warp instructions of all blocks;  shared_wavefronts : passes of loads, stores and shuffles through the
        load-store unit, 32 lanes a cycle;  fp64, special : scalar operations;  tensor_flops : on tensor cores
    atomics : float32 additions to global memory;  same_address : the most of them that meet in one address
    chain : what a block waits for from start to end;  drain : the part of it behind its last load
    overlapped : starts while the launch before it runs, where the GPU can
    cluster : blocks that have to be resident together
    """

    name: str
    stages: tuple[str, ...]
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    chain: Chain
    drain: Chain = Chain()
    q_bytes: int = 0
    k_bytes: int = 0
    v_bytes: int = 0
    k_requested_bytes: int = 0
    gathered_rows: int = 0
    row_bytes: int = 0
    gathers: str = ""
    output_bytes: int = 0
    makes: tuple[Buffer, ...] = ()
    takes: tuple[Buffer, ...] = ()
    keeps_stream_apart: bool = False
    l2_bytes: float = 0
    instructions: float = 0
    shared_wavefronts: float = 0
    fp64: float = 0
    special: float = 0
    tensor_flops: float = 0
    atomics: float = 0
    same_address: float = 0
    overlapped: bool = False
    cluster: int = 1
