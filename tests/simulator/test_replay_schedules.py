"""The two machines on schedules made up at random, whose times are so even that much happens in the same instant."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import santa_sim
from santa_sim.simulator.compile import Region, Rows
from santa_sim.simulator.jobs import Job, Schedule
from santa_sim.simulator.machine import play
from santa_sim.simulator.memory import FS_PER_S, BandwidthMemory
from santa_sim.simulator.plan import Requests, plan_of
from santa_sim.simulator.ports import BankPort, DirectPort
from santa_sim.simulator.replay import play_plan

CLOCK_FS = 625_000  # of machines and DRAM alike
UNITS = ("dram", "score", "softmax", "sampler", "accumulate", "output")
MACHINES = {
    "bandwidth": {"base": "mac_hbm3_bandwidth", "memory": {"latency_s": 5e-8, "bandwidth_bytes_per_s": 64 * 10**9}},
    "hbm3": {"base": "mac_hbm3", "memory": {"controller_latency_s": 5e-8}},
    "hbm3, no latency": {"base": "mac_hbm3", "memory": {"controller_latency_s": 0.0}},
    "ddr5": {"base": "mac_ddr5", "memory": {"controller_latency_s": 5e-8}},
}
ROW_BYTES = 128


def hardware(name, outstanding):
    return santa_sim.load_hardware({**MACHINES[name], "clock_hz": FS_PER_S // CLOCK_FS, "gather": {"outstanding": outstanding, "addresses_per_cycle": 2}})


def both(schedule, machine):
    """What the two machines make of a schedule."""
    bursts = -(-ROW_BYTES // machine.memory.burst_bytes)

    def port(env):
        if machine.memory.model == "bandwidth":
            return DirectPort(env, BandwidthMemory(machine.memory), machine.gather.outstanding)
        return BankPort(env, machine.memory.config, machine.gather.outstanding * bursts, round(machine.memory.controller_latency_s * FS_PER_S))

    compiled = play_plan(plan_of(schedule, Requests(machine.memory.burst_bytes)).with_addresses(), machine)
    told = play(schedule, port, machine)
    return told, compiled


def made_up(rng):
    """A schedule that can be played: jobs wait for earlier ones alone, and what gives slots back comes right behind what took them."""
    schedule = Schedule({unit: [] for unit in UNITS}, {unit: rng.randint(1, 4) for unit in UNITS})  # a buffer for each unit
    jobs = []

    def add(after):
        unit = rng.choice(UNITS)
        job = Job(unit, len(jobs), CLOCK_FS * rng.choice([0, 0, 1, 2, 4, 16, 80]) if unit != "dram" else 0, after)
        if unit == "dram":
            what = rng.choice(["read", "write", "gather", "nothing"])
            if what in ("read", "write"):
                kind = rng.choice(["k_read", "v_read", "q_read"]) if what == "read" else "output_write"
                job.regions, job.write = [Region(kind, 64 * rng.randrange(64), 64 * rng.choice([1, 2, 8]), 512, 512)], what == "write"
            elif what == "gather":
                job.rows = Rows("v_read", 0, ROW_BYTES, ROW_BYTES, np.array(sorted(rng.sample(range(64), rng.choice([1, 3, 6])))))
        schedule.jobs[unit].append(job)
        jobs.append(job)
        return job

    for _ in range(rng.randint(3, 40)):
        after = [job for job in jobs if rng.random() < 2.5 / max(3, len(jobs))]
        if jobs and rng.random() < 0.5:
            after.append(jobs[-1])
        job = add(rng.sample(list(dict.fromkeys(after)), len(dict.fromkeys(after))))
        if rng.random() < 0.7:
            job.takes.append((job.unit, 1))
            last = job if rng.random() < 0.3 else add([job])
            at_start = last is not job and last.unit == "dram" and rng.random() < 0.4
            (last.gives_at_start if at_start else last.gives).append((job.unit, 1))
    return schedule


@pytest.mark.parametrize("name", MACHINES)
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), outstanding=st.sampled_from([1, 8]))
def test_the_machines_agree_on_schedules_made_up(name, seed, outstanding):
    told, compiled = both(made_up(random.Random(seed)), hardware(name, outstanding))
    for field in ("end_fs", "busy_fs", "bursts", "useful_bytes", "memory", "peak", "stalls_fs"):
        assert getattr(compiled, field) == getattr(told, field), field


@pytest.mark.parametrize("order", [("score", "softmax"), ("softmax", "score")])
def test_of_two_that_come_in_the_same_instant_the_later_in_the_list_is_named(order):
    jobs = {unit: Job(unit, 0, 4 * CLOCK_FS, []) for unit in ("score", "softmax")}
    output = Job("output", 0, CLOCK_FS, [jobs[unit] for unit in order])
    schedule = Schedule({"dram": [], "score": [jobs["score"]], "softmax": [jobs["softmax"]], "output": [output]}, {})
    for run in both(schedule, hardware("bandwidth", 1)):
        assert run.stalls_fs["output"] == {"busy": CLOCK_FS, f"work_{order[1]}": 4 * CLOCK_FS, "done": 0}


@pytest.mark.parametrize("giver_first", [True, False])
def test_slots_given_back_and_taken_in_the_same_instant_are_held_once(giver_first):
    """A slot is held from 0 to 4 clocks, another from 4 to 5; which of the two is handled first in clock 4 doesn't matter."""
    first, second = Job("score", 0, 4 * CLOCK_FS, []), Job("score", 1, CLOCK_FS, [])
    second.takes, second.gives = [("slots", 1)], [("slots", 1)]
    holds = Job("softmax", 0, 4 * CLOCK_FS, [])
    holds.gives = [("slots", 1)]
    first.takes = [("slots", 1)]
    units = ["softmax", "score"] if giver_first else ["score", "softmax"]
    jobs = {"dram": [], "score": [first, second], "softmax": [holds]}
    schedule = Schedule({unit: jobs[unit] for unit in ("dram", *units)}, {"slots": 2})
    for run in both(schedule, hardware("bandwidth", 1)):
        assert run.end_fs == 5 * CLOCK_FS and run.peak == {"slots": 1}
