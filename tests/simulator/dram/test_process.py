"""The DRAM beside other SimPy processes gives what the memory alone gives when it knows everything beforehand."""

import numpy as np
import pytest
import simpy

from santa_sim.simulator.dram import Dram, DramProcess, Port, load_dram


@pytest.mark.parametrize("name", ["ddr4_3200", "hbm3"])
def test_two_streams_meet_as_if_known_beforehand(name):
    config = load_dram(name)
    rng = np.random.default_rng(0)
    burst = config.organization.burst_bytes
    plans = []  # (times, addresses) of each requester
    for _ in range(2):
        times = np.cumsum(rng.integers(0, 400_000, 60))
        plans.append((times, [rng.integers(0, 1 << 16, 8) * burst for _ in times]))
    ports = [Port(outstanding=16), Port(outstanding=4)]

    beforehand = Dram(config, ports)
    expected = []
    for port, (times, addresses) in enumerate(plans):
        ready = np.repeat(times, 8)
        expected.append(beforehand.request(0, np.concatenate(addresses), ready_fs=ready, port=port))
    beforehand.finish()

    env = simpy.Environment(initial_time=0)
    process = DramProcess(env, Dram(config, ports))
    tickets, seen = [[], []], []

    def requester(port, times, addresses):
        for time, address in zip(times, addresses, strict=True):
            yield env.timeout(int(time) - env.now)
            event = process.request(address, port=port)
            event.callbacks.append(lambda fired: seen.append((env.now, fired.value.last_fs)))
            tickets[port].append(event)

    for port, (times, addresses) in enumerate(plans):
        env.process(requester(port, times, addresses))
    env.run()
    for port in range(2):
        got = np.concatenate([event.value.done_fs for event in tickets[port]])
        assert np.array_equal(got, expected[port].done_fs)
    assert len(seen) == 120 and all(now == last for now, last in seen)


def test_a_chain_of_dependent_reads():
    """Each read is asked for when the one before it has come back."""
    config = load_dram("ddr4_3200").replace(refresh={"kind": "none"})
    t = config.timing
    env = simpy.Environment(initial_time=0)
    process = DramProcess(env, Dram(config))
    log = []

    def chase():
        for i in range(3):
            yield process.request(np.array([i * 64]))
            log.append(env.now // t.clock_fs)

    env.process(chase())
    env.run()
    miss, hit = 1 + t.nRCD_read + t.nCL + t.nBL, 1 + t.nCL + t.nBL
    assert log == [miss, miss + hit, miss + 2 * hit]


def test_a_posted_write_and_an_idle_memory():
    env = simpy.Environment(initial_time=0)
    process = DramProcess(env, Dram("ddr4_3200"))
    log = []

    def user():
        yield process.request(np.array([0]), True)
        log.append(env.now)
        yield env.timeout(10**9)
        yield process.request(np.array([0]))
        log.append(env.now)

    env.process(user())
    env.run()
    assert log[0] == 2 * 625_000 and log[1] > 10**9


def test_a_write_that_completes_before_a_read_known_to_complete():
    """The read's column command, which settles when it completes, comes before the write is even sent."""
    config = load_dram("ddr4_3200").replace(refresh={"kind": "none"})
    t = config.timing
    env = simpy.Environment(initial_time=0)
    process = DramProcess(env, Dram(config, [Port(), Port()]))
    sent, log = t.nRCD_read + 4, {}
    read = process.request(np.array([0]))
    write = process.request(np.array([1 << 20]), True, ready_fs=np.array([sent * t.clock_fs]), port=1)
    for name, event in (("read", read), ("write", write)):
        event.callbacks.append(lambda _, name=name: log.update({name: env.now // t.clock_fs}))
    env.run()
    assert log == {"write": sent + 2, "read": 1 + t.nRCD_read + t.nCL + t.nBL}
