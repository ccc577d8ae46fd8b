"""Numba settings shared by the compiled kernels, and a guard against stale caches.

Numba's on-disk cache notices an edit of the file that holds a function, not of the helpers that it inlines. So a hash of
all compiled sources is kept beside the cache; when it changes, our cached machine code is dropped.
"""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba

jit = functools.partial(numba.njit, cache=True, nogil=True)
# sums may be reordered, so that they become vector instructions; only where the result feeds no exact comparison
jit_fast = functools.partial(numba.njit, cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz", "nnan", "ninf"})

_ROOT = Path(__file__).parent


def _compiled_sources() -> list[Path]:
    folders = (_ROOT, _ROOT / "analysis", _ROOT / "methods", _ROOT / "simulator", _ROOT / "simulator" / "dram")
    return sorted(path for folder in folders for path in folder.glob("*.py") if "jit" in path.read_text(encoding="utf-8"))


def drop_stale_cache() -> None:
    """Delete our cached machine code if any compiled source has changed since it was written."""
    sources = _compiled_sources()
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = _ROOT / "__pycache__" / "kernels.sha256"
    try:
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for folder in {path.parent / "__pycache__" for path in sources}:
            for cached in [*folder.glob("*.nbi"), *folder.glob("*.nbc")]:
                cached.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest)
    except OSError:  # read-only installation: numba then caches in the user's own folder, keyed by path and date
        return


def cache_is_cold() -> bool:
    """True if no kernel has been compiled on this machine yet, so that the first run will take tens of seconds."""
    return not any((_ROOT / "methods" / "__pycache__").glob("*.nbi"))


@functools.lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="santa_sim")


def parallel_map(function, tasks: list[tuple]) -> list:
    """[function(*task) for task in tasks] on numba.get_num_threads() threads; the kernels release the GIL.

    The calling thread works too, so that only the others have to wake up. Each task writes only its own slices, so the
    results don't depend on the number of threads.
    """
    threads = min(numba.get_num_threads(), len(tasks))
    if threads <= 1:
        return [function(*task) for task in tasks]
    results: list = [None] * len(tasks)
    numbers = iter(range(len(tasks)))  # a range's iterator gives each number once, whichever thread asks

    def work() -> None:
        for number in numbers:
            results[number] = function(*tasks[number])

    helpers = [_pool(threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            helper.result()
    return results


drop_stale_cache()
