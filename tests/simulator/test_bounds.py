"""Closed forms that bound the simulator, pipelines by hand, and resources: less of one never makes a run faster."""

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from santa_sim.hardware import load_hardware
from santa_sim.simulator import simulate
from santa_sim.simulator.compile import addresses_of, compile_trace
from santa_sim.simulator.dram import Dram
from santa_sim.simulator.jobs import Job, Schedule
from santa_sim.simulator.machine import play
from santa_sim.simulator.memory import BandwidthMemory
from santa_sim.simulator.orders import order
from santa_sim.simulator.ports import DirectPort
from santa_sim.simulator.rooms import Waiting
from santa_sim.simulator.schedule import schedule

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY, ROOM = 10**9, {"tiles": 10**6, "tile_bytes": 2**30}
ENDLESS = {  # lanes without end, a clock of 1 ps, room for everything
    "clock_hz": 10**12,
    "lookahead_tiles": 0,
    "k_buffer": ROOM, "v_buffer": ROOM, "weights_buffer": ROOM, "write_buffer": ROOM,
    "score": {"mac_lanes": MANY, "queue_tiles": 10**6},
    "softmax": {"lanes": MANY},
    "stash": {"bytes": 2**40, "port_bytes_per_cycle": MANY},
    "budget": {"lanes": MANY},
    "selection": {"compares_per_cycle": MANY},
    "sampler": {"lanes": MANY, "queue_tiles": 10**6, "random_numbers_per_cycle": MANY, "search_compares_per_cycle": MANY},
    "gather": {"addresses_per_cycle": MANY, "outstanding": 2**20, "queue_items": 10**6},
    "accumulate": {"lanes": MANY},
    "merge": {"lanes": MANY, "lookahead_tiles": 0},
    "normalize": {"lanes": MANY},
    "output": {"port_bytes_per_cycle": MANY, "buffer_items": 10**6},
}  # fmt: skip
SHAPE = {"n_k": (4096,), "d": 64, "tile": 256, "kv_heads": 4, "g": 4}


# Without end


@pytest.mark.parametrize("method", ["sdpa", "flash", "prop", "topk"])
def test_endless_lanes_and_buffers_leave_the_time_of_the_memory(make_trace, method):
    """All bursts over the bandwidth, and at most eight cycles of 1 ps a work item, where rows wait for what was scored."""
    machine = load_hardware({"base": "mac_hbm3_bandwidth", "memory": {"latency_s": 0.0}} | ENDLESS)
    trace = make_trace(method, **SHAPE)
    result = simulate(trace, machine)
    bus_s = result.traffic_bytes["total"] / machine.memory.bandwidth_bytes_per_s
    assert bus_s <= result.latency_s <= bus_s + 8e-12 * len(trace)
    assert result.bound_by == "dram"


def test_endless_lanes_and_buffers_leave_the_time_of_the_banks(make_trace):
    """Dense attention asks for all it reads at once: what a DDR5 memory alone takes for the same bursts, to the femtosecond.
    (One head: the outputs of others would be written in between.)"""
    machine = load_hardware({"base": "mac_hbm3", "memory": {"dram": "ddr5_4800", "controller_latency_s": 0.0}} | ENDLESS)
    trace = make_trace("sdpa", **SHAPE | {"kv_heads": 1})
    jobs = order(compile_trace(trace, machine), machine).jobs["dram"]
    burst = machine.memory.burst_bytes
    dram = Dram(machine.memory.config)
    tickets = [dram.request(0, addresses_of(job.regions, burst)[0]) for job in jobs if not job.write]
    last_fs = max(int(dram.wait(ticket).max()) for ticket in tickets)
    spans = simulate(trace, machine, spans=True).spans
    writes = {job.row for job in jobs if job.write}
    assert max(span.end_fs for span in spans if span.unit == "dram" and span.row not in writes) == last_fs


@pytest.mark.parametrize("unit, lanes", [("score", {"mac_lanes": 16}), ("softmax", {"lanes": 1}), ("accumulate", {"lanes": 8})])
def test_an_endless_memory_leaves_the_time_of_the_slowest_unit(make_trace, unit, lanes):
    """Sixteen equal tiles: the slowest unit works without a break; before and behind it one tile passes the others."""
    machine = {"base": "mac_hbm3_bandwidth", "memory": {"bandwidth_bytes_per_s": 10**14, "latency_s": 0.0, "burst_bytes": 64}}
    machine |= ENDLESS | {"clock_hz": 10**9, unit: ENDLESS[unit] | lanes}
    result = simulate(make_trace("sdpa", **SHAPE | {"kv_heads": 1}), machine)
    assert result.bound_by == unit
    # one cycle in each other unit (score, softmax, accumulate but itself; normalise, output), memory under 20 ns in all
    assert result.busy_s[unit] + 4e-9 <= result.latency_s <= result.busy_s[unit] + 4e-9 + 20e-9
    causes = result.stalls_fs[unit]
    assert sum(fs for cause, fs in causes.items() if cause.startswith(("data", "space"))) <= 20 * 10**6


# Two stages


def two_stages(first, second, places):
    """[(start, end)] of both stages, by the recurrence of a pipeline with `places` between them: a piece leaves its place
    when the second stage has done it, and the first doesn't start a piece without one."""
    one, two = [], []
    for i, (a, b) in enumerate(zip(first, second)):
        start = max(one[-1][1] if i else 0, two[i - places][1] if i >= places else 0)
        one.append((start, start + a))
        start = max(one[-1][1], two[-1][1] if i else 0)
        two.append((start, start + b))
    return one, two


def played(first, second, places, machine):
    jobs = {"dram": [], "score": [], "softmax": []}
    for row, (a, b) in enumerate(zip(first, second)):
        score = Job("score", row, a, [])
        softmax = Job("softmax", row, b, [score])
        score.takes.append(("scores", 1))
        softmax.gives.append(("scores", 1))
        jobs["score"].append(score)
        jobs["softmax"].append(softmax)
    return play(Schedule(jobs, {"scores": places}), lambda env: DirectPort(env, BandwidthMemory(machine.memory), 1), machine, True)


def test_two_stages_and_one_place_by_hand(tiny_machine):
    """Pieces of 3, 1, 4 and 2, 5, 1: each start waits for the one place."""
    run = played([3, 1, 4], [2, 5, 1], 1, tiny_machine())
    events = [(s.unit, s.row, s.start_fs, s.end_fs) for s in run.spans]
    assert events == [
        ("score", 0, 0, 3), ("softmax", 0, 3, 5),
        ("score", 1, 5, 6), ("softmax", 1, 6, 11),
        ("score", 2, 11, 15), ("softmax", 2, 15, 16),
    ]  # fmt: skip
    assert run.stalls_fs["score"] == {"busy": 8, "space_scores": 7, "done": 1}
    assert run.stalls_fs["softmax"] == {"busy": 8, "work_score": 8, "done": 0}
    run = played([3, 1, 4], [2, 5, 1], 2, tiny_machine())
    assert [(s.start_fs, s.end_fs) for s in run.spans if s.unit == "score"] == [(0, 3), (3, 4), (5, 9)]
    assert [(s.start_fs, s.end_fs) for s in run.spans if s.unit == "softmax"] == [(3, 5), (5, 10), (10, 11)]


@SLOW
@given(pieces=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12), places=st.integers(1, 4))
def test_two_stages_event_by_event(pieces, places, tiny_machine):
    first, second = zip(*pieces)
    run, (one, two) = played(first, second, places, tiny_machine()), two_stages(first, second, places)
    for unit, wanted in (("score", one), ("softmax", two)):
        assert [(s.start_fs, s.end_fs) for s in run.spans if s.unit == unit] == wanted


# Random machines

shapes = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["prop", "flash", "sdpa", "topk"]),
        "score": st.sampled_from(["exact", "bernoulli"]),
        "n_k": st.lists(st.integers(1, 130), min_size=1, max_size=2),
        "kv_heads": st.integers(1, 3),
        "g": st.integers(1, 2),
        "d": st.sampled_from([2, 16, 24]),
        "tile": st.sampled_from([16, 32, 100]),
        "query_blocks": st.integers(1, 2),
        "samples": st.integers(1, 9),
        "seed": st.integers(0, 99),
    }
)


@st.composite
def machines(draw):
    few, size = st.integers(1, 5), st.sampled_from([64, 500, 4096])
    lanes = st.integers(1, 200)
    weights = draw(few)
    return {
        "clock_hz": draw(st.sampled_from([10**9, 777_777_777, 3 * 10**9])),
        "lookahead_tiles": draw(st.integers(0, weights)),
        "memory": {
            "bandwidth_bytes_per_s": draw(st.sampled_from([10**10, 64 * 10**9, 819_200_000_000])),
            "latency_s": draw(st.sampled_from([0.0, 1e-8, 1e-7])),
            "burst_bytes": draw(st.sampled_from([32, 64])),
        },
        "k_buffer": {"tiles": draw(few), "tile_bytes": draw(size)},
        "v_buffer": {"tiles": draw(few), "tile_bytes": draw(size)},
        "weights_buffer": {"tiles": weights, "tile_bytes": draw(size)},
        "write_buffer": {"tiles": draw(few), "tile_bytes": draw(size)},
        "score": {"mac_lanes": draw(lanes), "adder_lanes": draw(lanes), "queue_tiles": draw(few)},
        "softmax": {"lanes": draw(lanes)},
        "stash": {"bytes": draw(st.sampled_from([0, 100, 1000, 5000, 10**6])), "port_bytes_per_cycle": draw(lanes)},
        "budget": {"lanes": draw(lanes)},
        "selection": {"compares_per_cycle": draw(lanes), "lookahead_tiles": draw(few)},
        "sampler": {
            "lanes": draw(lanes),
            "adders_per_lane": draw(few),
            "queue_tiles": draw(few),
            "random_numbers_per_cycle": draw(lanes),
            "search_compares_per_cycle": draw(lanes),
        },
        "gather": {"addresses_per_cycle": draw(few), "outstanding": draw(st.integers(1, 40)), "queue_items": draw(few)},
        "accumulate": {"lanes": draw(lanes)},
        "merge": {"lanes": draw(lanes), "lookahead_tiles": draw(st.integers(0, 5))},
        "normalize": {"lanes": draw(lanes)},
        "output": {"port_bytes_per_cycle": draw(lanes), "buffer_items": draw(few)},
    }


@SLOW
@given(shape=shapes, machine=machines())
def test_every_run_ends_and_obeys_the_laws(shape, machine, make_trace, tiny_machine):
    trace, hardware = make_trace(**shape), tiny_machine(**machine)
    result = simulate(trace, hardware)
    assert all(0 <= share <= 1 for share in result.utilization.values())
    assert result.latency_s >= max(result.busy_s.values()) * (1 - 1e-12)
    assert result.latency_s >= result.traffic_bytes["total"] / hardware.memory.bandwidth_bytes_per_s
    assert result.memory["achieved_bandwidth_bytes_per_s"] <= hardware.memory.bandwidth_bytes_per_s
    assert result.utilization[result.bound_by] == max(result.utilization.values())
    assert result.cycles == math.ceil(result.latency_s * hardware.clock_hz * (1 - 1e-12))
    # bytes of the trace = bytes served = bytes charged
    burst = hardware.memory.burst_bytes
    reads = sum(n for kind, n in result.traffic_bytes.items() if kind.endswith("read"))
    writes = sum(n for kind, n in result.traffic_bytes.items() if kind.endswith("write"))
    assert result.traffic_bytes["total"] == reads + writes
    assert (reads, writes) == (result.memory["read_bursts"] * burst, result.memory["write_bursts"] * burst)
    assert result.energy_breakdown_j["dram_read"] == pytest.approx(reads * 8e-12)
    assert result.energy_breakdown_j["dram_write"] == pytest.approx(writes * 8e-12)
    assert all(result.useful_bytes[kind] <= n for kind, n in result.traffic_bytes.items())
    assert result.energy_j == math.fsum(result.energy_breakdown_j.values())


RATES = [("clock_hz",), ("memory", "bandwidth_bytes_per_s"), ("score", "mac_lanes"), ("score", "adder_lanes"), ("softmax", "lanes"),
         ("stash", "port_bytes_per_cycle"), ("budget", "lanes"), ("selection", "compares_per_cycle"), ("sampler", "lanes"),
         ("sampler", "adders_per_lane"), ("sampler", "random_numbers_per_cycle"), ("sampler", "search_compares_per_cycle"),
         ("gather", "addresses_per_cycle"), ("gather", "outstanding"), ("accumulate", "lanes"), ("merge", "lanes"),
         ("normalize", "lanes"), ("output", "port_bytes_per_cycle")]  # fmt: skip
# All but the stash, whose size decides what crosses DRAM.
ROOMS = [("k_buffer", "tiles"), ("k_buffer", "tile_bytes"), ("v_buffer", "tiles"), ("v_buffer", "tile_bytes"),
         ("weights_buffer", "tiles"), ("weights_buffer", "tile_bytes"), ("write_buffer", "tiles"), ("write_buffer", "tile_bytes"),
         ("score", "queue_tiles"), ("sampler", "queue_tiles"), ("gather", "queue_items"), ("output", "buffer_items")]  # fmt: skip


def times(fields, path, factor):
    if len(path) == 1:
        return fields | {path[0]: fields[path[0]] * factor}
    return fields | {path[0]: times(fields[path[0]], path[1:], factor)}


def ends(plan, hardware):
    """(unit, row, end) of every piece of work."""
    port = lambda env: DirectPort(env, BandwidthMemory(hardware.memory), hardware.gather.outstanding)  # noqa: E731
    return sorted((span.unit, span.row, span.end_fs) for span in play(plan, port, hardware, True).spans)


def none_later(before, after):
    return all(a[:2] == b[:2] and a[2] <= b[2] for b, a in zip(before, after, strict=True))


@settings(SLOW, max_examples=200)
@given(shape=shapes, machine=machines(), path=st.sampled_from(RATES + ROOMS), factor=st.integers(2, 7))
def test_less_of_anything_is_never_faster(shape, machine, path, factor, make_trace, tiny_machine):
    trace = make_trace(**shape)
    less, more = (simulate(trace, tiny_machine(**fields)) for fields in (machine, times(machine, path, factor)))
    assert more.latency_s <= less.latency_s


@SLOW
@given(shape=shapes, machine=machines(), path=st.sampled_from(RATES), data=st.data())
def test_in_one_order_more_of_anything_delays_nothing(shape, machine, path, data, make_trace, tiny_machine):
    trace, less, more = make_trace(**shape), tiny_machine(**machine), tiny_machine(**times(machine, path, 2))
    slow, fast = (schedule(compile_trace(trace, hardware), hardware, Waiting(1, 1, 1)) for hardware in (less, more))
    buffer = data.draw(st.sampled_from(sorted(slow.capacities)))
    roomy = dataclasses.replace(fast, capacities=fast.capacities | {buffer: 2 * fast.capacities[buffer]})
    first, second, third = ends(slow, less), ends(fast, more), ends(roomy, more)
    assert none_later(first, second) and none_later(second, third)


@SLOW
@given(shape=shapes, machine=machines())
def test_raising_sram_never_raises_dram_bytes(shape, machine, make_trace, tiny_machine):
    trace = make_trace(**shape)
    totals = []
    for size in (0, 64, 100, 1000, 4096, 10**5):
        result = simulate(trace, tiny_machine(**machine | {"stash": {"bytes": size}}))
        totals.append(result.traffic_bytes["total"])
    assert totals == sorted(totals, reverse=True)
    assert result.traffic_bytes["stash_write"] == result.traffic_bytes["partials_read"] == 0


BANKS = [("score", "mac_lanes"), ("softmax", "lanes"), ("accumulate", "lanes"), ("sampler", "lanes"), ("gather", "outstanding"),
         ("gather", "queue_items"), ("weights_buffer", "tiles"), ("output", "buffer_items"), ("gather", "addresses_per_cycle"), ("k_buffer", "tiles"), ("score", "queue_tiles"), ("stash", "port_bytes_per_cycle"),
         ("v_buffer", "tiles"), ("clock_hz",)]  # fmt: skip


@st.composite
def machines_on_banks(draw):
    def power(low, high):
        return 2 ** draw(st.integers(low, high))

    return {
        "base": "mac_hbm3",
        "clock_hz": 10**9 * power(0, 1),
        "memory": {"dram": draw(st.sampled_from(["hbm3", "ddr5_4800", "lpddr5_6400"]))},
        "k_buffer": {"tiles": power(1, 3)}, "v_buffer": {"tiles": power(1, 3)},
        "lookahead_tiles": 2, "weights_buffer": {"tiles": power(2, 4)}, "output": {"buffer_items": power(1, 3)},
        "score": {"mac_lanes": power(4, 12), "queue_tiles": power(1, 2)},
        "softmax": {"lanes": power(1, 6)},
        "stash": {"port_bytes_per_cycle": power(4, 8)},
        "sampler": {"lanes": power(1, 6), "queue_tiles": 2},
        "gather": {"outstanding": power(3, 8), "addresses_per_cycle": power(1, 3), "queue_items": power(1, 4)},
        "accumulate": {"lanes": power(4, 11)},
    }  # fmt: skip


@settings(SLOW, max_examples=30, derandomize=True)
@given(
    method=st.sampled_from(["prop", "flash", "sdpa", "topk"]),
    score=st.sampled_from(["exact", "bernoulli"]),
    n_k=st.integers(1000, 2500),
    d=st.sampled_from([64, 128]),
    machine=machines_on_banks(),
    path=st.sampled_from(BANKS),
)
def test_on_banks_half_of_something_gains_two_percent_at_most(method, score, n_k, d, machine, path, make_trace):
    """But where K is gathered while all of V streams: up to 7 %, as docs/machine.md says."""
    trace = make_trace(method, score, n_k=(n_k,), kv_heads=3, g=4, d=d, tile=256, samples=32)
    half = machine | ({path[0]: machine[path[0]] // 2} if len(path) == 1 else {path[0]: machine[path[0]] | {path[1]: machine[path[0]][path[1]] // 2}})
    whole, less = (simulate(trace, fields) for fields in (machine, half))
    gain = 0.07 if (method, score) == ("sdpa", "bernoulli") else 0.02
    assert less.latency_s >= (1 - gain) * whole.latency_s
