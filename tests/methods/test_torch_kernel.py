"""The torch kernel against the compiled one: the same trace and, for integers, the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_sim import attention
from santa_sim.methods.kernel import Block
from santa_sim.methods.layer import prepare
from santa_sim.methods.spec import METHODS, PRECISIONS, SAMPLED, SCORES
from santa_sim.trace import COUNTERS, KEYS

torch = pytest.importorskip("torch", reason='torch is not installed: pip install "santa-sim[models]"')
torch_kernel = pytest.importorskip("santa_sim.methods.torch_kernel")
stages = pytest.importorskip("santa_sim.methods.torch_stages")

BUDGETS = {method: {"S": 24} for method in SAMPLED} | {"topk": {"k_top": 9}, "sdpa": {}}
ALL_METHODS = [(method, {}) for method in METHODS] + [
    ("s2anta-prop", {"allocation": "systematic"}),
    ("s2anta-sys", {"sampler": "scaled-thresholds"}),
    ("s2anta-prop", {"sampler": "scaled-thresholds"}),
    ("s2anta-flash", {"sampler": "scaled-thresholds"}),
]


class FedBlock(torch_kernel.TorchBlock):
    """Takes u, m and ell (top-k: the scores) from the compiled score stage, so that they are equal to the last bit."""

    def exact_scores(self, *args):
        return Block.exact_scores(self, *args)

    def bernoulli_scores(self, *args):
        return Block.bernoulli_scores(self, *args)

    def scores(self, result):
        u, m, ell = Block.scores(self, result)
        hidden = np.arange(self.n) >= self.limits[:, None]
        u = self.tensor(np.where(hidden, np.float32(0), u))
        if self.spec.method == "topk":
            return u, None, None
        return stages.by_tile(u, self.tile), self.tensor(m), self.tensor(ell)


@pytest.fixture
def fed(monkeypatch):
    monkeypatch.setattr(torch_kernel, "TorchBlock", FedBlock)


def tensors(seed, n_q, n_k, H_kv, G, d, spread=1.0):
    """q, k and v; n_q = 0 for decode. `spread` puts some tiles' logits far below the others'."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((n_q or 1, H_kv * G, d)).astype(np.float32) * 2
    k, v = (rng.standard_normal((n_k, H_kv, d)).astype(np.float32) for _ in range(2))
    k *= np.where(rng.random(n_k) < 0.3, spread, 1.0).astype(np.float32)[:, None, None]
    return (q if n_q else q[0]), k, v


def plain(trace):
    """The trace's table as lists that compare with ==."""
    frame = trace.items
    return {name: [x.tolist() if isinstance(x, np.ndarray) else x for x in frame[name]] for name in frame.columns}


def assert_same_traces(a, b):
    assert len(a) == len(b)
    other = plain(b)
    for name, column in plain(a).items():
        assert column == other[name], name
    assert {**a.meta, "kernel": None} == {**b.meta, "kernel": None}


def assert_same(arguments, precision, kwargs):
    """Both kernels, the same trace; equal outputs, exactly so where they are integer sums."""
    expected, trace = attention(*arguments, precision=precision, **kwargs)
    found, torch_trace = attention(*arguments, precision=precision, kernel="torch", **kwargs)
    assert_same_traces(trace, torch_trace)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if kwargs["method"] in SAMPLED and precision in ("int8", "int16"):
        np.testing.assert_array_equal(found, expected)
    else:
        tolerance = {"fp16": 2e-3, "bf16": 2e-2}.get(precision, 2e-5)
        np.testing.assert_allclose(np.float32(found), np.float32(expected), rtol=tolerance, atol=tolerance)


@st.composite
def runs(draw):
    method, options = draw(st.sampled_from(ALL_METHODS))
    score = draw(st.sampled_from(SCORES))
    n_k = draw(st.integers(1, 150))
    n_q = draw(st.sampled_from([0, min(n_k, 1), min(n_k, 13)]))
    H_kv, G, d = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4, 5, 7])), draw(st.sampled_from([1, 5, 16, 33]))
    arguments = tensors(draw(st.integers(0, 2**16)), n_q, n_k, H_kv, G, d, draw(st.sampled_from([1.0, 40.0])))
    kwargs = {"method": method, "score": score, **options, "causal": draw(st.booleans())}
    kwargs["tile"] = draw(st.sampled_from([1, 7, 16, 64, 256]))
    kwargs["query_block"] = draw(st.sampled_from([4, 64]))
    kwargs["seed"] = draw(st.integers(0, 2**64 - 1))
    if method in SAMPLED:
        kwargs["S"] = draw(st.sampled_from([1, 6, 32, 200]))
    elif method == "topk":
        kwargs["k_top"] = draw(st.sampled_from([1, 10, 300]))
    if score != "exact":
        kwargs["B"] = draw(st.integers(1, 5))
    return arguments, draw(st.sampled_from(PRECISIONS)), kwargs


@settings(max_examples=80, deadline=None)
@given(run=runs())
def test_given_the_same_scores_the_traces_are_equal(run):
    arguments, precision, kwargs = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_kernel, "TorchBlock", FedBlock)
        assert_same(arguments, precision, kwargs)


@pytest.mark.parametrize("precision", ["fp32", "int16"])
@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-24])
@pytest.mark.parametrize(("method", "options"), [x for x in ALL_METHODS if x[0] in SAMPLED])
def test_random_numbers_at_the_ends_of_their_range(fed, monkeypatch, method, options, number, precision):
    monkeypatch.setattr(Block, "uniforms", lambda self, kv, count, word: np.full((self.R, count), number))
    assert_same(tensors(3, 0, 100, 2, 3, 8), precision, {"method": method, "S": 16, "tile": 32, **options})


@pytest.mark.parametrize(("method", "options"), ALL_METHODS)
def test_equal_logits(method, options):
    """Scores of 0 are the same in both kernels, so nothing needs feeding; ties go to the lowest key or tile."""
    q, k, v = tensors(5, 0, 64, 2, 2, 8)
    budget = {"S": 22} if method in SAMPLED else BUDGETS[method]  # 22 / 4 tiles: half a sample left over in each
    assert_same((np.zeros_like(q), k, v), "fp32", {"method": method, "tile": 16, **budget, **options})


def test_saturation_follows_the_order_of_the_draws():
    """More samples than an int32 sum can take: sums and number of saturated additions equal the compiled kernel's."""
    q, k = np.zeros((1, 1), np.float32), np.zeros((8, 1, 1), np.float32)
    v = np.array([0.99, 0.99, 0.99, 0.9, 0.99, -0.5, 0.99, 0.99], np.float32)[:, None, None]
    kwargs = {"method": "santa", "S": 90_001, "tile": 4, "precision": "int16"}
    expected, a = attention(q, k, v, **kwargs)
    found, b = attention(q, k, v, kernel="torch", **kwargs)
    assert_same_traces(a, b)
    assert found == expected
    assert b.meta["saturations"] > 1


@pytest.mark.parametrize("precision", ["int8", "int16"])
@pytest.mark.parametrize("method", METHODS)
def test_fixed_point_scores_are_integers_and_equal(method, precision):
    """Integer scores don't depend on the order of additions; only exp may differ, in its last bit."""
    kwargs = {"method": method, "tile": 32, **BUDGETS[method]}
    arguments = tensors(6, 0, 90, 2, 2, 16)
    expected, _ = attention(*arguments, precision=precision, **kwargs)
    found, _ = attention(*arguments, precision=precision, kernel="torch", **kwargs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "options", "score", "n_q"),
    [(*method, SCORES[i % 4], 24 * (i % 3 == 2)) for i, method in enumerate(ALL_METHODS + ALL_METHODS[:2])],
)
def test_end_to_end(method, options, score, n_q):
    """With its own scores, off in their last bits: the same work, at least 99 % of the rows, and a close output."""
    budget = {"S": 64} if method in SAMPLED else {"k_top": 40} if method == "topk" else {}
    kwargs = {"method": method, "score": score, "B": None if score == "exact" else 4, "tile": 64, **budget, **options}
    arguments = tensors(7, n_q, 500, 2, 4, 32)
    expected, a = attention(*arguments, **kwargs)
    found, b = attention(*arguments, kernel="torch", **kwargs)
    keys = [*KEYS, "stage"]
    a, b = (trace.items.set_index(keys) for trace in (a, b))
    for stage, counters in (("score", COUNTERS), ("output", COUNTERS[:-2]), ("merge", COUNTERS)):
        rows_a, rows_b = (x[x.index.get_level_values("stage") == stage][list(counters)] for x in (a, b))
        assert rows_a.equals(rows_b), stage
    gathered = a.join(b["gather_rows"].rename("gather_rows_torch"), how="outer")
    pairs = [(set(x), set(y)) for x, y in zip(gathered["gather_rows"], gathered["gather_rows_torch"])]
    together = sum(len(x | y) for x, y in pairs)
    assert sum(len(x & y) for x, y in pairs) >= 0.99 * together
    assert np.linalg.norm(found - expected) <= 0.02 * np.linalg.norm(expected)


def test_accumulators_saturate_row_after_row():
    """Three accumulators against Python integers: the order matters once the range has ended."""
    values = [2**31 - 5, 7, -(2**31), 12, -9, 2**30]
    rows, lengths = [0, 1, 4, 2, 2, 3, 0, 5, 5, 4], [3, 2, 5]
    expected, saturated, place = [], 0, 0
    for length in lengths:
        total = 0
        for row in rows[place : place + length]:
            exact = total + values[row]
            total = max(min(exact, 2**31 - 1), -(2**31))
            saturated += total != exact
        expected.append(total)
        place += length
    v = torch.tensor(values, dtype=torch.float64)[:, None, None]
    sums, lost = stages.gather_add_int32(v, torch.tensor(rows), torch.tensor(lengths)[None])
    assert sums[0, :, 0].tolist() == expected
    assert lost == saturated > 0


def test_bisect_counts_its_steps():
    values = torch.tensor([1.0, 3.0, 3.0, 8.0, 9.0])
    wanted = torch.tensor([0.0, 3.0, 8.5, 100.0])
    first = torch.zeros(4, dtype=torch.int64)
    index, steps = stages.bisect(first, first + 4, lambda i: values[i] >= wanted)
    assert index.tolist() == [0, 1, 4, 4]
    assert steps.tolist() == [3, 3, 2, 2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_tensors_may_be_read_only(precision):
    arguments = tensors(9, 0, 20, 1, 2, 4)
    for x in arguments:
        x.setflags(write=False)
    found, _ = attention(*arguments, method="sdpa", precision=precision, kernel="torch")
    assert np.isfinite(np.float32(found)).all()


def test_cuda_where_there_is_one():
    q, k, v = tensors(8, 0, 10, 1, 1, 4)
    spec = torch_kernel.Spec(method="sdpa", precision="fp32")
    found = torch_kernel.to_device(spec, prepare(spec, q[None], k, v, 4))
    assert found.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
