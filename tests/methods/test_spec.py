"""A method's budgets and numerics are checked once, and a mistake is named with its value."""

import pytest

from santa_sim.errors import InputError
from santa_sim.methods.spec import Spec


@pytest.mark.parametrize("options, message", [
    ({"method": "s2anta-pro", "samples": 1}, r"method='s2anta-pro' is not known; did you mean 's2anta-prop'\?"),
    ({"method": "sdpa", "score": "bernouli"}, r"score='bernouli' is not known; did you mean 'bernoulli'\?"),
    ({"method": "sdpa", "precision": "fp64"}, "precision='fp64' is not known; choose from bf16, fp16, fp32"),
    ({"method": "santa"}, "S is missing.*such as S=128"),
    ({"method": "santa", "samples": 0}, "S=0 is outside 1"),
    ({"method": "santa", "samples": -3}, "S=-3 is outside 1"),
    ({"method": "santa", "samples": 1.5}, "S=1.5 is not a whole number"),
    ({"method": "santa", "samples": True}, "S=True is not a whole number"),
    ({"method": "santa", "samples": "8"}, "S='8' is not a whole number"),
    ({"method": "santa", "samples": 2**24 + 1}, "S=16777217 is outside 1 ... 16777216"),
    ({"method": "santa", "samples": (4, 0)}, "S=0 is outside"),
    ({"method": "sdpa", "samples": 4}, "S=4: method 'sdpa' draws no samples; leave S out"),
    ({"method": "topk", "samples": 4, "k": 4}, r"S=4: .*\(top-k takes k\)"),
    ({"method": "topk"}, "k is missing.*such as k=128"),
    ({"method": "topk", "k": 0}, "k=0 is outside 1"),
    ({"method": "santa", "samples": 4, "k": 4}, "k=4: only method 'topk' takes k; 'santa' takes S"),
    ({"method": "sdpa", "score": "bernoulli"}, "B is missing.*such as B=4"),
    ({"method": "sdpa", "score": "bernoulli-stratified", "B": 0}, "B=0 is outside 1"),
    ({"method": "sdpa", "B": 4}, "B=4: score 'exact' draws no features"),
    ({"method": "sdpa", "tile": 0}, "tile=0 is outside 1"),
    ({"method": "sdpa", "tile": 10000}, "tile=10000 is outside 1 ... 8192"),
    ({"method": "sdpa", "query_block": 0}, "query_block=0 is outside"),
    ({"method": "sdpa", "seed": -1}, "seed=-1 is outside 0"),
    ({"method": "sdpa", "seed": 2**64}, "seed=18446744073709551616 is outside 0"),
    ({"method": "sdpa", "causal": "no"}, "causal='no' must be True or False"),
    ({"method": "s2anta-sys", "samples": 4, "allocation": "systematic"}, "allocation='systematic': only method 's2anta-prop'"),
    ({"method": "s2anta-prop", "samples": 4, "allocation": "sys"}, "allocation='sys' is not known"),
    ({"method": "santa", "samples": 4, "sampler": "scaled-thresholds"}, "sampler='scaled-thresholds': only systematic draws"),
    ({"method": "sdpa", "value_format": "Q2.5"}, "value_format='Q2.5' needs precision='int8' or 'int16', not 'bf16'"),
    ({"method": "sdpa", "precision": "int16", "value_format": "Q2.5"}, "int16 needs m \\+ n = 15"),
])  # fmt: skip
def test_mistakes_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Spec(**options)


def test_samples_of_each_layer():
    spec = Spec("santa", (3, 5))
    assert [spec.samples_at(i, 2) for i in range(2)] == [3, 5]
    with pytest.raises(InputError, match=r"S has 2 entries, \[3, 5\]; the workload has 3 layers"):
        spec.samples_at(0, 3)
    assert Spec("santa", 7).samples_at(2, 3) == 7


@pytest.mark.parametrize("n_k, tile", [(1, 32), (1536, 32), (1537, 64), (3072, 64), (3073, 256), (131072, 256)])
def test_default_tiles(n_k, tile):
    assert Spec("sdpa").tile_for(n_k) == tile
    assert Spec("sdpa", tile=100).tile_for(n_k) == 100
