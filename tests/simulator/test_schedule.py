"""The order of memory requests: what goes behind what, from the trace and the sizes alone."""

import itertools

import pytest

from santa_sim.simulator import simulate
from santa_sim.simulator.compile import compile_trace
from santa_sim.simulator.schedule import schedule


def requests(trace, machine):
    """The DRAM jobs in order as (KV head, tile, what), what being the buffer, with 'w' for writes."""
    items = trace.items
    names = []
    for job in schedule(compile_trace(trace, machine), machine).jobs["dram"]:
        kind = job.rows.kind if job.rows is not None else job.regions[0].kind
        buffer, _, verb = kind.partition("_")
        names.append(
            (int(items["kv_head"][job.row]), int(items["tile"][job.row]), buffer + ("w" if verb == "write" else ""))
        )
    return names


def places(order, what):
    return {(head, tile): place for place, (head, tile, name) in enumerate(order) if name == what}


ROOMY = {
    "lookahead_tiles": 2,
    "k_buffer": {"tiles": 4},
    "v_buffer": {"tiles": 4},
    "weights_buffer": {"tiles": 8},
    "write_buffer": {"tiles": 8},
    "gather": {"queue_items": 8},
    "stash": {"bytes": 10**6},
    "output": {"buffer_items": 8},
}


def test_dense_v_follows_its_k(make_trace, tiny_machine):
    order = requests(make_trace("sdpa", n_k=(96,), kv_heads=1), tiny_machine(**ROOMY))
    assert order == [
        (0, 0, "q"),
        (0, 0, "k"),
        (0, 0, "v"),
        (0, 1, "k"),
        (0, 1, "v"),
        (0, 2, "k"),
        (0, 2, "v"),
        (0, -1, "outputw"),
    ]


def test_flash_rows_go_behind_so_many_further_tiles_of_k(make_trace, tiny_machine):
    order = requests(make_trace("flash", n_k=(160,), kv_heads=1), tiny_machine(**ROOMY))
    assert [entry for entry in order if entry[2] in "kv"] == [
        (0, 0, "k"),
        (0, 1, "k"),
        (0, 2, "k"),
        (0, 0, "v"),
        (0, 3, "k"),
        (0, 1, "v"),
        (0, 4, "k"),
        (0, 2, "v"),
        (0, 3, "v"),
        (0, 4, "v"),
    ]


def test_two_pass_rows_stream_between_the_next_heads_tiles(make_trace, tiny_machine):
    """Value item j of head 0 stands behind tile j + lookahead - 1 of head 1, counted from 0."""
    order = requests(make_trace("prop", n_k=(256,), kv_heads=3), tiny_machine(**ROOMY))
    k, v = places(order, "k"), places(order, "v")
    for j in range(6):
        assert k[1, j + 1] < v[0, j] < k[1, j + 2]
    assert v[0, 7] < min(k[2, 1], v[1, 0])


def test_queries_go_ahead_but_never_three_groups_at_a_time(make_trace, tiny_machine):
    order = requests(make_trace("sdpa", n_k=(96,), kv_heads=4), tiny_machine(**ROOMY))
    q, k = places(order, "q"), places(order, "k")
    assert k[0, 0] < q[1, 0] < k[0, 1]  # two tiles ahead of head 1
    order = requests(make_trace("sdpa", n_k=(32,), kv_heads=4), tiny_machine(**ROOMY))
    q, k = places(order, "q"), places(order, "k")
    assert all(k[head - 2, 0] < q[head, 0] < k[head, 0] for head in (2, 3))


@pytest.mark.parametrize("method", ["prop", "flash"])
def test_at_most_one_of_each_kind_behind_a_tile_of_k(make_trace, tiny_machine, method):
    order = [what for _, _, what in requests(make_trace(method, n_k=(300,), kv_heads=2), tiny_machine(**ROOMY))]
    last = len(order) - 1 - order[::-1].index("k")
    between = [list(group) for is_k, group in itertools.groupby(order[:last], lambda what: what == "k") if not is_k]
    assert all(len(set(group)) == len(group) for group in between)
    assert any("v" in group for group in between)


def test_a_head_waits_for_the_half_of_the_stash_and_the_accumulators_that_it_needs(make_trace, tiny_machine):
    """Heads of two tiles, a longer lookahead, a slow sampler: head 2's exponentials wait for head 0's sampling."""
    machine = tiny_machine(**ROOMY | {"lookahead_tiles": 8})
    trace = make_trace("prop", n_k=(64,), kv_heads=4)
    heads, stages = trace.items["kv_head"], trace.items["stage"]
    spans = simulate(trace, machine, spans=True).spans
    for head in (2, 3):
        sampled = max(s.end_fs for s in spans if s.unit == "sampler" and heads[s.row] == head - 2)
        assert (
            min(s.start_fs for s in spans if s.unit == "softmax" and heads[s.row] == head and stages[s.row] == "score")
            >= sampled
        )
        normalised = max(s.end_fs for s in spans if s.unit == "normalize" and heads[s.row] == head - 2)
        assert min(s.start_fs for s in spans if s.unit == "accumulate" and heads[s.row] == head) >= normalised


def test_spilled_stash_is_written_before_it_is_read_and_read_before_its_rows(make_trace, tiny_machine):
    machine = tiny_machine(**ROOMY | {"stash": {"bytes": 0}})
    order = requests(make_trace("prop", n_k=(256,), kv_heads=3), machine)
    written, read, rows, k = (places(order, what) for what in ("stashw", "stash", "v", "k"))
    assert set(written) == set(read) == set(rows) == set(k)
    for place in rows:
        assert k[place] < written[place] < read[place] < rows[place]
    for j in range(5):
        between = [entry for entry in order[read[0, j] : rows[0, j]] if entry[2] == "k"]
        assert len(between) == 2


def test_a_small_weights_buffer_brings_rows_forward(make_trace, tiny_machine):
    """Two tiles may wait for their rows, not more, whatever the lookahead."""
    machine = tiny_machine(**ROOMY | {"weights_buffer": {"tiles": 2}})
    order = requests(make_trace("flash", n_k=(320,), kv_heads=1), machine)
    k, v = places(order, "k"), places(order, "v")
    assert all(v[0, t] < k[0, t + 3] for t in range(7))


def test_write_backs_wait_for_their_results_in_order(make_trace, tiny_machine):
    order = requests(make_trace("prop", n_k=(128,), kv_heads=4), tiny_machine(**ROOMY))
    outputs = [head for head, _, what in order if what == "outputw"]
    assert outputs == [0, 1, 2, 3]
    v, out = places(order, "v"), places(order, "outputw")
    assert all(out[head, -1] > v[head, 3] for head in range(4))
