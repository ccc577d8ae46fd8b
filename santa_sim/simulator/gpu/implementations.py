"""Which kernels play a method: ours, the paper authors', a dense split over keys."""

from __future__ import annotations

from ...errors import InputError, choose
from ...hardware_gpu import Gpu
from . import authors, ours, split_kv
from .launch import Launch
from .work import Work

IMPLEMENTATIONS = {"ours": ours.launches, "authors": authors.launches, "split-kv": split_kv.launches}


def launches_of(work: Work, implementation: str | None, gpu: Gpu) -> list[Launch]:
    """The launches that an implementation plays work with, in order.

    Raises
    ------
    InputError
        The implementation isn't known, or hasn't this method.
    """
    if implementation is None:
        implementation = "split-kv" if work.method == "sdpa" and work.score == "exact" else "ours"
    choose("implementation", implementation, IMPLEMENTATIONS)
    if max(work.lengths, default=0) < 1:
        raise InputError(f"lengths={list(work.lengths)[:8]}: no step has a key, so there is nothing to launch")
    return IMPLEMENTATIONS[implementation](work, gpu)
