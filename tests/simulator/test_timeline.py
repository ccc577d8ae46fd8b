"""The Perfetto file, read back with the package's own protobufs: slices that tile each track and sum to the result."""

import collections
import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

import santa_sim
from santa_sim import cli
from santa_sim.simulator import simulate
from santa_sim.simulator.run import record
from santa_sim.simulator.stalls import words

KINDS = [("sdpa", "exact"), ("prop", "exact"), ("flash", "exact"), ("prop", "bernoulli")]
MACHINES = ["mac_hbm3", "mac_lpddr5", "mac_hbm3_bandwidth"]


@dataclasses.dataclass
class Slice:
    name: str
    category: str
    start_ns: int
    end_ns: int
    values: dict


def read(path):
    """Track name -> its slices in file order, and track name -> its parent's, from a file."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    names, annotations, categories, tracks, parents = {}, {}, {}, {}, {}
    slices, open_ = collections.defaultdict(list), {}
    assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_names:
            annotations[entry.iid] = entry.name
        for entry in packet.interned_data.event_categories:
            categories[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
            parents[packet.track_descriptor.name] = tracks.get(packet.track_descriptor.parent_uuid)
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        track = tracks[event.track_uuid]  # described before it is used
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert track not in open_
            values = {annotations[a.name_iid]: a.int_value for a in event.debug_annotations}
            open_[track] = Slice(names[event.name_iid], categories[event.category_iids[0]], packet.timestamp, -1, values)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            piece = open_.pop(track)
            piece.end_ns = packet.timestamp
            slices[track].append(piece)
    assert not open_
    return slices, parents


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("method, score", KINDS)
def test_slices_tile_their_tracks_and_sum_to_utilisations_and_stalls(method, score, machine, make_trace, tmp_path):
    check(simulate(make_trace(method, score, n_k=(300, 77), kv_heads=3, d=64, g=2, tile=64), machine), tmp_path)


WORKLOAD = {"name": "small", "model": "none", "kind": "decode", "heads": 4, "kv_heads": 2, "head_dim": 64, "n_k": [700], "model_layers": 1,
            "dtype": "bfloat16", "source": {"type": "gaussian"}}  # fmt: skip


@pytest.mark.parametrize(
    "method, arguments",
    [
        ("sdpa", {}),
        ("s2anta-prop", {"S": 32}),
        ("s2anta-flash", {"S": 32}),
        ("s2anta-prop", {"S": 32, "score": "bernoulli-stratified", "B": 8}),
    ],
)
def test_so_do_those_of_real_runs(method, arguments, tmp_path):
    check(santa_sim.run(WORKLOAD, method, **arguments), tmp_path)


def check(result, tmp_path):
    """Every track's slices are what the result says, in sum."""
    result.timeline(tmp_path / "r.pftrace")
    slices, parents = read(tmp_path / "r.pftrace")
    latency = round(result.latency_s * 1e15)

    assert {track for track in slices if parents[track] == "units"} == {unit.replace("_", " ") for unit in result.stalls_fs}
    for track, pieces in slices.items():
        end, end_ns = 0, 0
        for piece in pieces:
            start, duration = piece.values["start_fs"], piece.values["duration_fs"]
            assert (start, piece.start_ns) == (end, start // 10**6) and piece.start_ns >= end_ns  # no gap, no overlap
            end, end_ns = start + duration, piece.end_ns
            assert piece.end_ns == end // 10**6
        if parents[track] == "units":
            assert end == latency

    for unit, causes in result.stalls_fs.items():
        times = collections.Counter()
        for piece in slices[unit.replace("_", " ")]:
            times["busy" if piece.category == "work" else piece.name] += piece.values["duration_fs"]
        wanted = collections.Counter({cause if cause == "busy" else words(cause): fs for cause, fs in causes.items()})
        assert +times == +wanted
        if unit != "requests":
            assert times["busy"] == pytest.approx(result.utilization[unit] * latency, abs=1)

    channels = [track for track in slices if parents[track] == "memory"]
    bursts = [piece for track in channels for piece in slices[track] if piece.category == "work"]
    moved = sum(piece.values["duration_fs"] for piece in bursts)
    memory, config = result.memory, result.played[1].memory
    if memory["model"] == "bandwidth":  # each busy period loses the fraction of a femtosecond
        assert moved == pytest.approx(result.busy_s["dram"] * 1e15, rel=1e-12, abs=len(bursts))
        return
    timing = config.config.timing
    assert len(channels) == config.config.organization.buses
    assert moved == (memory["reads"] + memory["writes"]) * timing.nBL * timing.clock_fs
    whole = memory["read_bursts"] + memory["write_bursts"]  # of which some joined others in a queue
    assert moved / len(channels) == pytest.approx(result.busy_s["dram"] * 1e15 * (memory["reads"] + memory["writes"]) / whole)


def test_work_names_its_trace_row(make_trace, tmp_path):
    trace = make_trace("prop", kv_heads=2)
    result = simulate(trace, "adder_hbm3", spans=True)
    result.timeline(tmp_path / "r.pftrace")
    slices, _ = read(tmp_path / "r.pftrace")
    scores = [piece for piece in slices["score"] if piece.category == "work"]
    assert [(p.values["trace_row"], p.values["start_fs"]) for p in scores] == [
        (span.row, span.start_fs) for span in result.spans if span.unit == "score"
    ]
    for piece in scores:
        assert piece.name == "score work"
        for name in ("sequence", "layer", "kv_head", "query_block", "tile"):
            assert piece.values[name] == trace.items[name].iloc[piece.values["trace_row"]]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("method, score", KINDS)
def test_recording_changes_nothing(method, score, machine, make_trace):
    result = simulate(make_trace(method, score, n_k=(300,), d=64), machine)
    run = record(*result.played)
    assert run.end_fs == round(result.latency_s * 1e15)
    assert run.stalls_fs == result.stalls_fs
    again = simulate(*result.played, spans=True)
    assert again.to_dict() == result.to_dict()


def test_bank_and_window_stalls_of_scattered_rows(make_trace, tiny_machine):
    """Rows of one burst far apart: a DDR5 channel opens a row for each, and few requests are in flight."""
    machine = {"base": "mac_hbm3", "memory": {"dram": "ddr5_4800"}, "gather": {"outstanding": 1}}
    trace = make_trace("prop", n_k=(2000,), kv_heads=1, d=32, tile=500, samples=200)
    frame = simulate(trace, machine).stalls(channels=True)
    causes = frame[frame["unit"].str.startswith("DRAM")].groupby("cause")["share"].mean()
    assert causes["bank"] > 0.05 and causes["window"] > 0.05


def test_a_write_after_the_end_is_shown_there(make_trace, tmp_path):
    """Outputs are posted: what the write buffer still holds when the machine has done is written out behind it."""
    result = simulate(make_trace("sdpa", kv_heads=1), "mac_lpddr5")
    run = record(*result.played)
    late = sum(int((channel.writes[:, 1] > run.end_fs).sum()) for channel in run.channels)
    result.timeline(tmp_path / "r.pftrace")
    slices, _ = read(tmp_path / "r.pftrace")
    shown = [piece for pieces in slices.values() for piece in pieces if piece.name == "writes after the end"]
    assert len(shown) == late
    assert all(piece.values["start_fs"] >= run.end_fs for piece in shown)


def test_a_changed_trace_is_noticed(make_trace, tmp_path):
    result = simulate(make_trace("prop"), "adder_hbm3")
    items = result.played[0].items
    items.loc[:, "softmax_exps"] = items["softmax_exps"].to_numpy() * 50
    with pytest.raises(ValueError, match="was changed after it was made"):
        result.timeline(tmp_path / "r.pftrace")


def test_from_the_command_line(make_trace, tmp_path):
    trace, out = tmp_path / "t.parquet", tmp_path / "r.pftrace"
    make_trace("prop").save(trace)
    done = CliRunner().invoke(cli.main, ["simulate", str(trace), "--timeline", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert "score" in read(out)[0]
    done = CliRunner().invoke(cli.main, ["simulate", str(trace), "--timeline", str(tmp_path / "no" / "r.pftrace")])
    assert done.exit_code == 2 and "does not exist" in done.output


def test_rows_of_the_channels_are_int64(make_trace):
    run = record(*simulate(make_trace("prop"), "adder_hbm3").played)
    for channel in run.channels:
        for spans in (channel.reads, channel.writes, channel.queued, channel.asked):
            assert spans.dtype == np.int64 and spans.ndim == 2 and (spans[:, 1] > spans[:, 0]).all()
