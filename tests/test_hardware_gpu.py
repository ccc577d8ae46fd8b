"""GPU machines: the shipped ones agree with their data sheets, mistakes are named, a calibration goes through a file."""

from __future__ import annotations

import pytest
import yaml

from santa_sim import InputError, load_hardware
from santa_sim.hardware_gpu import Gpu

CARDS = ("a100", "h100", "h200", "l4", "rtx_3090", "rtx_4090", "rtx_6000_ada")
CURVE = {"bytes": [2**20, 2**26, 2**31], "seconds": [4e-6, 2e-5, 5e-4]}
CALIBRATION = {
    "source": "a card that doesn't exist", "clock_hz": 1_900_000_000, "read": CURVE, "write": CURVE,
    "launch": {"graph_s": 3e-6, "graph_next_s": 6e-7, "stream_s": 3e-6, "stream_next_s": 1.5e-6, "overlapped_next_s": 5e-7, "blocks_per_s": 1.6e9},
    "dram_latency_s": 3.5e-7, "loaded_latency_s": 6e-7, "l2_latency_s": 1.6e-7, "l2_bandwidth_bytes_per_s": 9e12, "atomic_s": 1.8e-9,
    "atomics_per_s": 1e12,
}  # fmt: skip


@pytest.mark.parametrize("name", CARDS)
def test_shipped_cards_are_gpus_without_calibration(name):
    gpu = load_hardware(name)
    assert isinstance(gpu, Gpu) and gpu.name == name and gpu.calibration is None
    assert gpu.memory.burst_bytes == gpu.memory.sector_bytes == 32


@pytest.mark.parametrize(("name", "tflops"), [("a100", 19.5), ("h100", 66.9), ("l4", 30.3), ("rtx_3090", 35.6), ("rtx_4090", 82.6),
                                              ("rtx_6000_ada", 91.1)])  # fmt: skip
def test_float32_rates_are_the_data_sheets(name, tflops):
    gpu = load_hardware(name)
    assert 2e-12 * gpu.multiprocessors.count * gpu.multiprocessors.fp32_per_cycle * gpu.clock_hz == pytest.approx(tflops, rel=0.005)


@pytest.mark.parametrize(("changes", "said"), [
    ({"l2": {"byte": 5}}, "did you mean 'bytes'"),
    ({"kind": "gpus"}, "did you mean 'gpu'"),
    ({"multiprocessors": {"count": 0}}, "multiprocessors.count = 0"),
    ({"memory": {"bandwidth_bytes_per_s": "fast"}}, "memory.bandwidth_bytes_per_s = 'fast'"),
    ({"calibration": {**CALIBRATION, "read": {"bytes": [1, 2, 3], "seconds": [1e-6, 2e-6]}}}, "one time per size"),
    ({"calibration": {**CALIBRATION, "read": {"bytes": [2, 1], "seconds": [1e-6, 2e-6]}}}, "must increase"),
    ({"calibration": {**CALIBRATION, "read": {"bytes": [1, 2], "seconds": [2e-6, 1e-6]}}}, "must not decrease"),
    ({"l2": {"latency_s": 150}}, "write it in s"),
    ({"l2": {"bandwidth_bytes_per_s": 8990}}, "write it in B/s"),
    ({"l2": {"bytes": 60}}, "write it in B"),
    ({"memory": {"bytes": 141}}, "write it in B"),
    ({"memory": {"latency_s": 273e-3}}, "write it in s"),
    ({"multiprocessors": {"shared_bytes_per_block": 300000}}, "more than the multiprocessor's shared_bytes=233472"),
    ({"calibration": {**CALIBRATION, "dram_latency_s": 355}}, "calibration.dram_latency_s"),
    ({"calibration": {**CALIBRATION, "read": {**CURVE, "seconds": [2e-6, 2e-5, 5e-4]}}}, "no more than an empty kernel's"),
    ({"calibration": {**CALIBRATION, "read": {**CURVE, "seconds": [4e-6, 2e-5, 4e-4]}}}, "faster than the memory's 4,800,000,000,000 B/s"),
    ({"calibration": {**CALIBRATION, "write": {**CURVE, "seconds": [4e-6, 2e-5, 4e-4]}}}, "write at least 0.000434 s"),
    ({"calibration": {key: value for key, value in CALIBRATION.items() if key != "launch"}}, "calibration.launch: missing"),
])  # fmt: skip
def test_mistakes_are_named(changes, said):
    with pytest.raises(InputError) as error:
        load_hardware({"base": "h200", **changes})
    assert said in str(error.value)


@pytest.mark.parametrize(("name", "gib"), [("a100", 80), ("h100", 80), ("l4", 24), ("rtx_3090", 24), ("rtx_4090", 24), ("rtx_6000_ada", 48)])
def test_memories_are_whole_gib(name, gib):
    assert load_hardware(name).memory.bytes == gib * 2**30


def test_calibration_goes_through_a_file(tmp_path):
    file = tmp_path / "my_gpu.yaml"
    file.write_text(yaml.safe_dump({"base": "h200", "calibration": CALIBRATION}))
    gpu = load_hardware(file)
    assert gpu.name == "my_gpu" and gpu.calibration.read.bytes == (2**20, 2**26, 2**31)
    assert gpu.multiprocessors == load_hardware("h200").multiprocessors


def test_an_accelerator_may_say_its_kind():
    assert load_hardware({"base": "adder_hbm3", "kind": "accelerator"}).clock_hz == load_hardware("adder_hbm3").clock_hz
