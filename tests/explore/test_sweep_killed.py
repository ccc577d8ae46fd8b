"""A sweep killed with SIGKILL at any moment, whoever of it dies, goes on to the same file, byte for byte."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from santa_sim.errors import SimulationError
from santa_sim.explore import sweep as engine
from santa_sim.explore.sweep_parts import Parts
from santa_sim.explore.sweep_spec import load_sweep

W = "smollm2_decode_2k"
SPEC = {"workload": W, "method": "s2anta-prop", "S": [64, 32], "hardware": "adder_hbm3_bandwidth", "grid": {"gather.outstanding": [1, 4, 64, 256]}}
LIMIT_S = 120  # for what takes seconds, on a machine with much else to do

# Runs a sweep of two points a part for each moment, in a child that kills itself there.
SUICIDES = """
import os, signal, sys
from pathlib import Path
import santa_sim.explore.sweep as engine, santa_sim.explore.sweep_parts as kept
from tests_spec import SPEC
from santa_sim.explore.sweep_spec import load_sweep

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def at(moment, output):
    write, remove = kept._write, kept.Parts._remove
    def dying(path, make):
        number = {"first part": 0, "third part": 2, "last part": 3}.get(moment.removeprefix("before the ").removeprefix("in the "))
        if number is not None and path.name == f"part-{number:08d}.arrow":
            if moment.startswith("in"):
                make(path.with_name(f".{path.name}.{os.getpid()}"))
            die()
        if path == output and moment == "in the file":
            path.with_name(f".{path.name}.{os.getpid()}").write_bytes(b"PAR1 and half of the rest")
            die()
        write(path, make)
    def removing(parts):
        if moment == "parts half removed":
            for path in sorted(parts.folder.glob("part-*"))[:2]:
                path.unlink()
        die()
    kept._write, kept.Parts._remove = dying, removing

engine.CHUNK = 2
for moment in sys.argv[2:]:
    child = os.fork()
    if not child:
        output = Path(sys.argv[1]) / moment.replace(" ", "_") / "o.parquet"
        output.parent.mkdir()
        at(moment, output)
        engine.run_sweep(load_sweep(SPEC), output, jobs=1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        sys.exit(f"{moment}: was not reached")
"""
MOMENTS = {  # and the parts that are there afterwards; None: the file is
    "before the first part": 0, "in the first part": 0, "in the third part": 2, "before the last part": 3, "in the file": 4, "parts not removed": None, "parts half removed": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of a sweep that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "o.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CHUNK", 2)
        engine.run_sweep(load_sweep(SPEC), path, jobs=1)
    return path.read_bytes()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder for each moment, as the killed sweep left it."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "tests_spec.py").write_text(f"SPEC = {SPEC!r}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", SUICIDES, str(folder), *MOMENTS], env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at(moment, killed, whole, monkeypatch):
    folder = killed / moment.replace(" ", "_")
    parts, output = folder / "o.parquet.parts", folder / "o.parquet"
    assert parts.is_dir() and output.exists() == (MOMENTS[moment] is None)
    left = {path.name for path in parts.glob("part-*")}
    assert MOMENTS[moment] in (None, len(left))
    monkeypatch.setattr(engine, "CHUNK", 2)
    made, add = [], Parts.add
    monkeypatch.setattr(Parts, "add", lambda self, chunk, table: (made.append(self.path(chunk).name), add(self, chunk, table)))
    engine.run_sweep(load_sweep(SPEC), output, jobs=1)
    assert len(made) == (0 if MOMENTS[moment] is None else 4 - len(left)) and not left & set(made)  # none twice
    assert output.read_bytes() == whole
    assert os.listdir(folder) == ["o.parquet"]  # nothing half-written is left


@pytest.mark.parametrize("damage", [b"", b"ARROW1\0\0", None])
def test_parts_that_cannot_be_read_are_made_again(damage, tmp_path, whole, monkeypatch, run_until):
    monkeypatch.setattr(engine, "CHUNK", 2)
    output, add, made = tmp_path / "o.parquet", Parts.add, []
    run_until(2, load_sweep(SPEC), output)
    part = tmp_path / "o.parquet.parts" / "part-00000001.arrow"
    part.write_bytes(part.read_bytes()[:-200] if damage is None else damage)
    monkeypatch.setattr(Parts, "add", lambda self, chunk, table: (made.append(chunk), add(self, chunk, table)))
    engine.run_sweep(load_sweep(SPEC), output, jobs=1)
    assert made == [1, 3] and output.read_bytes() == whole


def started(tmp_path, *options, S="[64, 32, 16, 8, 4, 2]"):
    """A sweep in a process of its own, once it has a part on disk; and its output."""
    spec, output = tmp_path / "spec.yaml", tmp_path / "cut.parquet"
    spec.write_text(f"workload: {W}\nmethod: s2anta-prop\nhardware: adder_hbm3_bandwidth\nS: {S}\ngrid: {{gather.outstanding: [1, 256]}}\n")
    process = subprocess.Popen([sys.executable, "-m", "santa_sim.cli", "sweep", str(spec), "-o", str(output), *options], start_new_session=True, stderr=subprocess.PIPE, text=True)
    until(lambda: process.poll() is not None or list(Path(f"{output}.parts").glob("part-*")))
    assert process.poll() is None, process.stderr.read()
    return process, load_sweep(spec), output


def until(done) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def workers_of(process) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("who", ["sweep and workers", "sweep", "a worker"])
def test_killed_with_workers(who, tmp_path):
    process, sweep, output = started(tmp_path, "-j", "2")
    workers = workers_of(process)
    assert workers
    if who == "sweep and workers":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid if who == "sweep" else workers[0], signal.SIGKILL)
    error = process.communicate()[1]
    if who == "a worker":
        assert process.returncode == 2 and "a worker died" in error and "run the same sweep again" in error
    until(lambda: not any(map(alive, workers)))  # they end with their parent
    assert not output.exists() and list(Path(f"{output}.parts").glob("part-*"))
    engine.run_sweep(sweep, output, jobs=1)
    engine.run_sweep(sweep, tmp_path / "whole.parquet", jobs=1)
    assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_on_a_dask_cluster(tmp_path, monkeypatch):
    """The same bytes as here, also if a worker is killed, or the sweep; without any worker it ends."""
    distributed = pytest.importorskip("distributed", reason="needs distributed (the extra 'cluster')")
    monkeypatch.setattr(engine, "CHUNK", 2)
    sweep = load_sweep(workload=W, method="s2anta-prop", S=[64, 32], hardware="adder_hbm3", grid={"gather.outstanding": [1, 256], "accumulate.lanes": [0, 512]})
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    engine.run_sweep(sweep, here, jobs=1)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        at = cluster.scheduler_address
        killed = []

        def kill_one(what, done, total):
            if done and not killed:
                killed.append(cluster.workers[0].pid)
                os.kill(killed[0], signal.SIGKILL)

        engine.run_sweep(sweep, there, scheduler=at, progress=kill_one)
        assert killed and there.read_bytes() == here.read_bytes()
        process, cut, output = started(tmp_path, "--scheduler", at)
        process.kill()
        process.communicate()
        monkeypatch.undo()
        if not output.exists():
            engine.run_sweep(cut, output, scheduler=at)
        engine.run_sweep(cut, tmp_path / "whole.parquet", jobs=1)
        assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
        monkeypatch.setattr("santa_sim.explore.sweep_crew.NO_WORKERS_S", 1)

        def kill_all(what, done, total):
            for worker in list(cluster.scheduler.workers):
                cluster.scheduler.loop.add_callback(cluster.scheduler.remove_worker, worker, stimulus_id="test", close=True)

        with pytest.raises(SimulationError, match="no workers for 1 s; what is done is kept"):
            engine.run_sweep(load_sweep(SPEC), tmp_path / "alone.parquet", scheduler=at, progress=kill_all)
