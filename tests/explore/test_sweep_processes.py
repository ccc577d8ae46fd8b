"""A sweep's processes: started from any script, stopped at any time."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

SPEC = "workload: smollm2_decode_2k\nmethod: s2anta-prop\nhardware: adder_hbm3_bandwidth\nS: [64, 32]\ngrid: {gather.outstanding: [1, 256]}\n"


def test_a_plain_script_needs_no_guard(tmp_path):
    """Its workers don't run it again, whether it is a file or a module."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "plain.py").write_text("import sys, santa_sim\nprint('once')\nprint(len(santa_sim.sweep('spec.yaml', output=sys.argv[1], jobs=2)))\n__file__, __spec__\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    for name, how in (("file.parquet", ["plain.py"]), ("module.parquet", ["-m", "plain"])):
        done = subprocess.run([sys.executable, *how, name], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout.split()) == (0, ["once", "4"]), done.stderr
        assert "Traceback" not in done.stderr
        assert pd.read_parquet(tmp_path / name).failure.isna().all()


@pytest.mark.parametrize("workers", [1, 2])
def test_interrupted_while_workers_start(workers, tmp_path):
    """One line, no traceback, as soon as so many workers have been started."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    process = subprocess.Popen([sys.executable, "-m", "santa_sim.cli", "sweep", str(spec), "-o", str(tmp_path / "o.parquet"), "-j", "2"],
                               start_new_session=True, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_interrupts)  # fmt: skip
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            if sum(is_worker(pid) for pid in file.read().split()) >= workers:
                break
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == 130, told
    assert told.split("\n")[-2].startswith("stopped; what is done is kept") and "Traceback" not in told


def heeds_interrupts():
    """Whoever runs the tests in the background may have had interrupts ignored, which a process hands down."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_worker(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"spawn_main" in file.read()
    except OSError:
        return False
