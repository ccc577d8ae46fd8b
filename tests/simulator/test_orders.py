"""The orders that a machine may follow, and which one it does."""

import pytest

from santa_sim.hardware import load_hardware
from santa_sim.simulator import simulate
from santa_sim.simulator.compile import compile_trace
from santa_sim.simulator.machine import play
from santa_sim.simulator.memory import BandwidthMemory
from santa_sim.simulator.orders import fastest, fitting, order
from santa_sim.simulator.ports import DirectPort
from santa_sim.simulator.rooms import Waiting
from santa_sim.simulator.schedule import schedule

SHAPE = {"n_k": (300, 77), "kv_heads": 3, "samples": 6}
ROOMS = {"weights_buffer": {"tiles": 16}, "write_buffer": {"tiles": 16}, "gather": {"queue_items": 16}, "output": {"buffer_items": 16}}


def rows(plan):
    return tuple((unit, job.row, job.write) for unit, jobs in plan.jobs.items() for job in jobs)


@pytest.mark.parametrize("method", ["prop", "flash", "sdpa", "topk"])
@pytest.mark.parametrize("stash", [0, 1000, 10**6])
def test_more_room_keeps_all_orders_and_the_least_waiting_always_fits(make_trace, tiny_machine, method, stash):
    trace, stash = make_trace(method, **SHAPE), {"stash": {"bytes": stash}, "lookahead_tiles": 2}
    all_orders, before = None, None
    for less in ({}, {"output": {"buffer_items": 1}}, {"gather": {"queue_items": 2}}, {"weights_buffer": {"tiles": 2}},
                 {"write_buffer": {"tiles": 1}}, {name: dict.fromkeys(fields, 2) for name, fields in ROOMS.items()}):  # fmt: skip
        machine = tiny_machine(**ROOMS | less | stash)
        program = compile_trace(trace, machine)
        fits = [rows(plan) for plan in fitting(program, machine)]
        assert fits[0] == rows(schedule(program, machine, Waiting(1, 1, 1)))
        all_orders = all_orders or set(fits)
        before = before or fits[-1]
        assert set(fits) <= all_orders
    assert before == rows(schedule(program, machine))  # with room for it, work waits until it is due


def test_a_full_buffer_is_named_and_what_overflows_does_not_fit(make_trace, tiny_machine):
    machine = tiny_machine(**ROOMS | {"lookahead_tiles": 4, "gather": {"queue_items": 3}})
    program = compile_trace(make_trace("flash", n_k=(320,), kv_heads=1), machine)
    natural, few = schedule(program, machine), schedule(program, machine, Waiting(work=2))
    assert not natural.full and not natural.fits
    assert {"weights", "rows"} & few.full and few.fits


def test_the_fastest_is_taken_and_of_equal_ones_the_last(tiny_machine):
    assert fastest([5, 3, 4, 3], lambda time: time, tiny_machine()) == 3
    assert fastest([5, 3, 4], lambda time: time, tiny_machine()) == 1
    banks = load_hardware("mac_hbm3")  # where the choice sees half of it, the gain must be larger
    assert fastest([991, 990, 1000], lambda time: time, banks) == 2
    assert fastest([991, 900, 1000], lambda time: time, banks) == 1


def test_a_longer_wait_is_not_forced_on_a_machine_with_room(make_trace, tiny_machine):
    """Each of the orders that fit, played alone, ends no earlier than the run."""
    lanes = {"score": {"mac_lanes": 4000}, "softmax": {"lanes": 64}, "sampler": {"lanes": 64}, "accumulate": {"lanes": 64}, "merge": {"lanes": 64}}
    machine = tiny_machine(**ROOMS | lanes | {"lookahead_tiles": 3})
    trace = make_trace("flash", **SHAPE)
    program = compile_trace(trace, machine)
    port = lambda env: DirectPort(env, BandwidthMemory(machine.memory), machine.gather.outstanding)  # noqa: E731
    ends = [play(plan, port, machine).end_fs for plan in fitting(program, machine)]
    assert len(set(ends)) > 1
    assert simulate(trace, machine).latency_s == min(ends) / 1e15
    assert play(order(program, machine), port, machine).end_fs == min(ends)
