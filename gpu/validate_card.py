"""The card and its state: name, driver, clocks, ECC, power, temperature, and who else runs on it."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess

from . import device

# field of the record -> nvidia-smi's name for it (nvidia-smi --help-query-gpu)
_QUERIES = {
    "name": "name", "driver": "driver_version", "memory_mib": "memory.total", "memory_used_mib": "memory.used",
    "sm_clock_mhz": "clocks.sm", "memory_clock_mhz": "clocks.mem", "largest_sm_clock_mhz": "clocks.max.sm", "largest_memory_clock_mhz": "clocks.max.mem",
    "ecc": "ecc.mode.current", "power_w": "power.draw", "power_limit_w": "power.limit", "temperature_c": "temperature.gpu",
    "performance_state": "pstate", "throttle_reasons": "clocks_throttle_reasons.active", "persistence": "persistence_mode", "mig": "mig.mode.current",
}  # fmt: skip


def parse_query(text: str) -> dict[str, object]:
    """A line of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits` as a record; numbers as numbers."""
    parts = [part.strip() for part in text.strip().splitlines()[0].split(",")]
    return {name: _number(part) for name, part in zip(_QUERIES, parts)}


def parse_processes(text: str) -> list[dict[str, object]]:
    """Lines of `nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits`."""
    rows = [[part.strip() for part in line.split(",")] for line in text.strip().splitlines() if line.strip()]
    return [{"pid": _number(row[0]), "program": row[1], "memory_mib": _number(row[2])} for row in rows if len(row) == 3]


def _number(text: str) -> object:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _smi(number: int, query: str) -> str | None:
    """What nvidia-smi says, or None where it isn't or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    bus = device.require_cupy().cuda.runtime.deviceGetPCIBusId(number)
    command = ["nvidia-smi", f"--id={bus}", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    return done.stdout if done.returncode == 0 and done.stdout.strip() else None


def state(number: int = 0) -> dict[str, object]:
    """What nvidia-smi reports now, and the other processes on the card; `nvidia_smi` says whether it answered."""
    import os

    text = _smi(number, "--query-gpu=" + ",".join(_QUERIES.values()))
    found: dict[str, object] = {"nvidia_smi": text is not None}
    if text is not None:
        found |= parse_query(text)
    others = _smi(number, "--query-compute-apps=pid,process_name,used_memory")
    found["other_processes"] = [row for row in parse_processes(others or "") if row["pid"] != os.getpid()]
    return found


def card(number: int = 0) -> dict[str, object]:
    """What CUDA says about the card, and the software."""
    cupy = device.require_cupy()
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    name = properties["name"]
    driver = cupy.cuda.runtime.driverGetVersion()
    return {
        "name": name.decode() if isinstance(name, bytes) else str(name), "compute_capability": device.capability(number),
        "multiprocessors": device.attribute(number, "MultiProcessorCount"), "l2_bytes": device.attribute(number, "L2CacheSize"),
        "memory_bytes": int(properties["totalGlobalMem"]), "memory_bus_bits": device.attribute(number, "GlobalMemoryBusWidth"),
        "clock_hz": device.attribute(number, "ClockRate") * 1000, "memory_clock_hz": device.attribute(number, "MemoryClockRate") * 1000,
        "threads": device.attribute(number, "MaxThreadsPerMultiProcessor"), "blocks": device.attribute(number, "MaxBlocksPerMultiprocessor"),
        "registers": device.attribute(number, "MaxRegistersPerMultiprocessor"),
        "shared_bytes": device.attribute(number, "MaxSharedMemoryPerMultiprocessor"),
        "shared_bytes_per_block": device.attribute(number, "MaxSharedMemoryPerBlockOptin"),
        "reserved_bytes_per_block": device.attribute(number, "ReservedSharedMemoryPerBlock"),
        "cuda_driver_api": f"{driver // 1000}.{driver % 1000 // 10}", "cupy": cupy.__version__, "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
