"""What `santa-sim dram` and `santa-sim trace --format` do: play request traces on a memory, and write them."""

from __future__ import annotations

from pathlib import Path

from .api import machine_for
from .errors import InputError, choose
from .hardware import Hardware
from .report import si
from .simulator.dram import Report, load_dram, read_trace, replay_chunks, write_trace
from .simulator.dram.traces import FORMATS
from .simulator.export import memory_requests
from .trace import Trace

TRACE_FORMATS = ("parquet", *FORMATS)


def play_requests(trace: str | Path, config: str | Path, issue: str, outstanding: int | None, request_bytes: int | None) -> Report:
    """Play a request trace (.npz, Ramulator's or DRAMsim3's text) on a memory; arguments as in `replay`.

    Raises
    ------
    InputError
        The trace or the memory can't be read, or doesn't fit the other (named).
    """
    return replay_chunks(read_trace(trace), load_dram(config), issue, outstanding, request_bytes=request_bytes)


def report_text(report: Report) -> str:
    """A report as lines of name and value for people, with prefixes."""
    columns = report.reads + report.writes
    limit = "" if report.outstanding is None else f", {report.outstanding:,} outstanding"
    rows = [
        ("memory", f"{report.config}, policy {report.policy}, {report.issue}{limit}"),
        ("requests", f"{report.requests:,}"),
        ("time", f"{si(report.time_s, 's')}  ({report.cycles:,} cycles)"),
        ("bandwidth", f"{si(report.bandwidth_bytes_per_s, 'B/s')} of {si(report.peak_bytes_per_s, 'B/s')}"
                      f"  ({100 * report.bandwidth_bytes_per_s / report.peak_bytes_per_s:.1f} %)"),
        ("reads, writes", f"{report.reads:,}, {report.writes:,} bursts on the bus; {report.reads_merged:,} reads joined another, "
                          f"{report.reads_forwarded:,} came from the write buffer, {report.writes_coalesced:,} writes replaced one there"),
        ("row hits", f"{report.read_row_hits:,} of reads, {report.write_row_hits:,} of writes  "
                     f"({100 * report.row_hit_rate:.1f} % of {columns:,})"),
        ("activates", f"{report.activates:,}"),
        ("refreshes", f"{report.refreshes:,} of ranks, {report.bank_refreshes:,} of banks"),
        ("queue", f"{report.queue_occupancy:.1f} in each channel's, {si(report.wait_s, 's')} in it, on average"),
        ("energy", f"{si(report.total_energy_j, 'J')}  ("
                   + ", ".join(f"{kind} {si(joules, 'J')}" for kind, joules in report.energy_j.items() if joules) + ")"),
    ]  # fmt: skip
    return "\n".join([*(f"{name:<15}{text}" for name, text in rows), *(f"· {note}" for note in report.notes)])


def export_machine(method: str, form: str, hardware: str | None) -> Hardware | None:
    """The machine whose requests `santa-sim trace --format` writes; None for a trace of work, which no machine shapes.

    Raises
    ------
    InputError
        The format or the machine isn't known, or a machine is given where none has a say.
    """
    choose("format", form, TRACE_FORMATS)
    if form != "parquet":
        return machine_for(method, hardware)
    if hardware is not None:
        raise InputError(
            f"hardware={hardware!r} has no say in a trace of format 'parquet'; give it to `santa-sim simulate`, or write "
            f"--format {' or '.join(FORMATS)} for the requests of its memory"
        )
    return None


def export_requests(trace: Trace, machine: Hardware, path: str | Path, form: str) -> dict[str, object]:
    """Write the memory side of a trace in another simulator's form; what was written, as plain data."""
    requests = write_trace(path, ((addresses, writes, None) for addresses, writes in memory_requests(trace, machine)), form)
    memory = machine.memory
    return {
        "file": str(path), "format": form, "hardware": machine.name, "kv_layout": machine.kv_layout, "requests": requests,
        "burst_bytes": memory.burst_bytes, "bytes": requests * memory.burst_bytes,
    }  # fmt: skip
