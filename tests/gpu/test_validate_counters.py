"""Nsight Compute's report: tables, units, steps; what is said where there is none."""

import pytest
from santa_sim.gpu import validate_counters as counters
from santa_sim.gpu.validate_card import parse_processes, parse_query
from santa_sim.gpu.validate_cells import grid
from santa_sim.gpu.validate_collect import for_counters

from santa_sim import InputError

# as Nsight Compute 2025.3 prints it with --csv --page raw --print-units base, fewer columns
REPORT = """==PROF== Connected to process 711 (/usr/bin/python3.12)
==PROF== Profiling "score" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
"","","","","","","","","","","","byte","byte","ns"
"0","711","python3.12","127.0.0.1","score","1","13","(128, 1, 1)","(8, 256, 1)","0","9.0","67147008","64000","24416"
"1","711","python3.12","127.0.0.1","void sample<128>(unsigned short const*, int)","1","13","(512, 1, 1)","(4, 32, 1)","0","9.0","3,220,736","0","9,600"
"2","711","python3.12","127.0.0.1","nothing","1","13","(32, 1, 1)","(1, 1, 1)","0","9.0","0","0","1200"
"""


def test_a_report_becomes_records_in_si_units():
    score, sample, mark = counters.parse_report(REPORT)
    assert score == {"kernel": "score", "dram_read_bytes": 67147008.0, "dram_write_bytes": 64000.0, "duration_s": pytest.approx(24.416e-6)}
    assert sample["kernel"] == "sample" and sample["dram_read_bytes"] == 3220736.0
    assert mark["kernel"] == counters.MARK


def test_units_that_ncu_scales_are_scaled_back():
    text = REPORT.replace('"byte","byte","ns"', '"Mbyte","Kbyte","us"').replace('"67147008","64000","24416"', '"67.147008","64","24.416"')
    assert counters.parse_report(text)[0]["dram_read_bytes"] == pytest.approx(67147008)
    assert counters.parse_report(text)[0]["duration_s"] == pytest.approx(24.416e-6)


def test_steps_end_at_the_mark():
    steps = counters.assign([{"name": "a"}], counters.parse_report(REPORT))
    assert [kernel["kernel"] for kernel in steps[0]["kernels"]] == ["score", "sample"]
    with pytest.raises(InputError, match="2 steps ran"):
        counters.assign([{"name": "a"}, {"name": "b"}], counters.parse_report(REPORT))


def test_no_table_says_what_ncu_said():
    with pytest.raises(InputError, match="ERR_NVGPUCTRPERM"):
        counters.parse_report("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")


def test_without_ncu_the_reason_is_kept(monkeypatch):
    monkeypatch.setattr(counters, "find_ncu", lambda: None)
    assert "not installed" in counters.collect([], "all")["error"]


def test_a_profiler_that_fails_is_an_error_not_a_crash(tmp_path):
    fake = tmp_path / "ncu"
    fake.write_text("#!/bin/sh\necho '==ERROR== no counters here'\nexit 1\n")
    fake.chmod(0o755)
    assert "no counters here" in counters.collect([], "all", ncu=str(fake))["error"]


def test_what_nvidia_smi_says():
    line = "NVIDIA H200, 580.159.04, 143771, 527, 1980, 3201, 1980, 3201, Enabled, 85.88, 700.00, 34, P0, 0x0000000000000000, Enabled, Disabled\n"
    state = parse_query(line)
    assert state["driver"] == "580.159.04" and state["power_w"] == 85.88 and state["temperature_c"] == 34 and state["ecc"] == "Enabled"
    assert parse_processes("1234, python, 527\n\n") == [{"pid": 1234, "program": "python", "memory_mib": 527}]
    assert parse_processes("") == []


def test_counters_are_read_for_every_method_of_the_first_type():
    chosen = for_counters(grid())
    assert {cell.precision for cell in chosen} == {"bf16"}
    assert {cell.method for cell in chosen} == {cell.method for cell in grid()} and {cell.batch for cell in chosen} == {1, 16}
