"""Micro-benchmarks: the source compiles for every architecture; records become a calibration."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from santa_sim.gpu import build, microbench, validate_predict

from santa_sim import InputError, load_hardware
from santa_sim.hardware_gpu import Calibration

RECORDED = Path(__file__).parent / "data" / "validation_h200.json"


@pytest.fixture
def raw():
    """Micro-benchmarks of one H200."""
    return json.loads(RECORDED.read_text())


def test_source_includes_nothing():
    assert "#include" not in build.source("microbench.cu")


def test_every_named_instruction_is_in_the_source():
    text = build.source("microbench.cu")
    assert all(f"INSTRUCTION({name}, " in text for name in microbench.INSTRUCTIONS)


def test_compiles_for_every_architecture(nvcc, tmp_path):
    path = tmp_path / "microbench.cu"
    path.write_text(build.source("microbench.cu"))
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in (build.ARCHITECTURES[0], build.ARCHITECTURES[-2])]
    command = [nvcc, "-std=c++17", "-fatbin", "-Werror", "all-warnings", *targets, "-o", str(tmp_path / "out"), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_calibration_is_one_that_the_machine_takes(raw):
    calibration = Calibration.model_validate(json.loads(json.dumps(validate_predict.calibration_of(raw))))
    assert calibration.clock_hz == pytest.approx(raw["micro"]["clock"][0]["hz"], abs=1)
    assert calibration.read.bytes[0] == 2**20 and calibration.read.bytes[-1] == 2**31
    # each part of it as the records say: an empty kernel, the largest stream, a slope over many
    assert calibration.launch.graph_s == next(x["seconds"] for x in raw["micro"]["launch"] if x["kernels"] == 1 and x["how"] == "graph")
    largest = [x["seconds"] for x in raw["micro"]["stream"] if x["what"] == "read" and x["cache"] == "clean" and x["bytes"] == 2**31 and not x["evict_first"]]
    assert calibration.read.seconds[-1] == min(largest)


def test_slope_and_littles_law_on_made_records():
    records = [{"kernels": n, "seconds": 3e-6 + 0.6e-6 * n} for n in (1, 2, 8)]
    assert validate_predict._slope(records, "kernels") == pytest.approx(0.6e-6)
    # 132 multiprocessors, 4 KB each in flight, 600 ns: bandwidth is in flight over latency until the memory is full
    bandwidths = [min(132 * size / 600e-9, 4e12) for size in (4096, 8192, 12288, 65536)]
    made = [{"loads": 1, "in_flight_bytes": size, "bytes": 2**28, "seconds": 3e-6 + 2**28 / b} for size, b in zip((4096, 8192, 12288, 65536), bandwidths)]
    assert validate_predict._loaded_latency(made, 132, 3e-6) == pytest.approx(600e-9)


def test_the_cache_keeps_up_to_where_the_time_bends():
    sizes = [8 * 2**20 * i for i in range(1, 13)]
    noise = np.random.default_rng(0).normal(0, 0.1e-6, 12)
    seconds = [2e-6 + size / 8e12 + max(0, size - 40 * 2**20) / 3e12 for size in sizes]
    assert validate_predict._kept([{"bytes": size, "seconds": t + e} for size, t, e in zip(sizes, seconds, noise)]) == 40 * 2**20


def test_a_larger_stream_never_takes_less():
    records = [{"bytes": size, "seconds": seconds} for size, seconds in ((1, 3.0), (2, 2.5), (4, 5.0), (4, 4.5))]
    assert validate_predict._curve(records) == {"bytes": [1, 2, 4], "seconds": [3.0, 3.0, 4.5]}


def test_a_failed_micro_benchmark_is_named(raw):
    raw["micro"]["gather"] = [{"error": "RuntimeError: out of memory"}]
    with pytest.raises(InputError, match="'gather' failed.*out of memory"):
        validate_predict.calibration_of(raw)


def test_machine_is_the_card_that_was_measured(raw):
    machine = load_hardware(validate_predict.machine_of(raw))
    card = raw["card"]
    assert machine.multiprocessors.count == card["multiprocessors"] and machine.l2.bytes == card["l2_bytes"]
    assert machine.memory.bandwidth_bytes_per_s == pytest.approx(4.8e12, rel=0.01)  # the data sheet's, from bus and clock
    assert np.all(np.diff(machine.calibration.read.seconds) >= 0)


def test_an_unknown_card_takes_the_rates_of_its_compute_capability(raw):
    raw["card"] |= {"name": "NVIDIA Somebody's 9000", "multiprocessors": 100, "compute_capability": 90}
    machine = load_hardware(validate_predict.machine_of(raw))
    assert machine.name == "nvidia_somebody_s_9000_calibrated" and machine.multiprocessors.count == 100
    assert any("rates per cycle" in note for note in machine.notes)
