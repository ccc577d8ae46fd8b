"""Everything that needs the card: its state, the micro-benchmarks, times and outputs of every cell, peers and counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from . import device, microbench, validate_card, validate_counters, validate_peers
from .validate_cells import Cell, make_inputs
from .validate_measure import measure_cell
from .validate_timing import FLUSH_BYTES, TIMED, WARM_UP, Flush

Progress = Callable[[str, int, int], None]


def collect(cells: Sequence[Cell], *, counters: bool = True, quick: bool = False, few: bool = True, progress: Progress | None = None,
            keep: Callable[[dict], None] | None = None) -> dict:  # fmt: skip
    """Measure; plain data for `validate.judge_run`, and for a file to be judged again without the card.

    Parameters
    ----------
    cells : grouped by shape;  counters : read DRAM counters where ncu is;  quick : fewer micro-benchmark sizes
    few : DRAM counters alone, else also instructions and occupancy;  progress : called with (what, done, in all)
    keep : called with what there is after each part, so that a later failure loses nothing

    Raises
    ------
    InputError
        No CuPy, or no GPU.
    """
    cupy = device.require_cupy()
    number = cupy.cuda.runtime.getDevice()
    tell = progress or (lambda what, done, total: None)
    keep = keep or (lambda raw: None)
    clock = {"start": time.perf_counter()}
    raw: dict = {"card": validate_card.card(number), "before": validate_card.state(number),
                 "protocol": {"warm_up": WARM_UP, "timed": TIMED, "flush_bytes": FLUSH_BYTES}}  # fmt: skip
    raw["micro"] = microbench.run(tell, quick)
    clock["micro"] = time.perf_counter()
    keep(raw)
    raw["cells"], raw["peers"] = measure_all(cells, tell)
    raw["no_peers"] = validate_peers.why_none()
    raw["peer_versions"] = validate_peers.versions()
    raw["after"] = validate_card.state(number)
    clock["cells"] = time.perf_counter()
    keep(raw)
    cupy.get_default_memory_pool().free_all_blocks()
    if counters:
        chosen = for_counters([cell for cell, record in zip(cells, raw["cells"]) if "refused" not in record])
        raw["counters"] = {}
        for i, cache in enumerate(validate_counters.CACHE_MODES):
            tell(f"DRAM counters, --cache-control {cache}", i, len(validate_counters.CACHE_MODES))
            raw["counters"][cache] = validate_counters.collect(chosen, cache, few=few or cache == "none", others=not few)
    clock["counters"] = time.perf_counter()
    stamps = list(clock.items())
    raw["seconds_taken"] = {name: end - start for (_, start), (name, end) in zip(stamps, stamps[1:])}
    return raw


def measure_all(cells: Sequence[Cell], tell: Progress) -> tuple[list[dict], list[dict]]:
    """Records of the cells, in their order, and of the peers on each of their shapes."""
    flush = Flush(microbench.kernel)
    records, peers, shape, inputs = [], [], None, None
    for i, cell in enumerate(cells):
        tell(cell.name, i, len(cells))
        if shape != (cell.n_k, cell.batch, cell.precision):
            inputs = None
            device.require_cupy().get_default_memory_pool().free_all_blocks()
            shape, inputs = (cell.n_k, cell.batch, cell.precision), make_inputs(cell.n_k, cell.batch, cell.precision)
            if validate_peers.why_none() is None:
                peers += validate_peers.measure_peers(inputs, flush)
        records.append(measure_cell(cell, inputs, flush))
    return records, peers


def for_counters(cells: Sequence[Cell]) -> list[Cell]:
    """Cells whose counters are read: bfloat16 (or the only type there is), the smallest and the larger lengths, one S each."""
    types = sorted({cell.precision for cell in cells})
    lengths = sorted({cell.n_k for cell in cells})
    kept = {lengths[0], *lengths[-2:]} if lengths else set()
    least = {method: min(cell.S for cell in cells if cell.method == method) for method in {cell.method for cell in cells}}
    return [cell for cell in cells if cell.precision == types[0] and cell.n_k in kept and cell.S == least[cell.method]]
