"""Sources that stand alone and compile for every architecture; parameters that a step has values for; what the kernels refuse."""

import ctypes
import itertools
import re
import subprocess

import pytest
from santa_sim.gpu import build

from santa_sim import InputError
from santa_sim.methods.spec import METHODS, SCORES, Spec

# each kernel with every stage it has, both builds, and types, head dimensions, groups and tiles in between
COMPILED = (
    ("score", build.Variant(128, 4, 256, "bf16", staged=True)), ("score", build.Variant(64, 7, 100, "fp16", keep=True, instrument=True)),
    ("score", build.Variant(256, 1, 32, "bf16", instrument=True)), ("features", build.Variant(256, 8, 128, "fp16", kind=1, instrument=True)),
    ("features", build.Variant(128, 4, 128, "bf16", kind=2)), ("features", build.Variant(64, 5, 128, "bf16", kind=3)),
    ("bernoulli", build.Variant(128, 4, 128, "bf16", kind=3, staged=True)), ("bernoulli", build.Variant(64, 7, 100, "fp16", kind=1, keep=True)),
    ("bernoulli", build.Variant(256, 8, 512, "bf16", kind=2, instrument=True)),
    ("sample", build.Variant(128, 4, 128, "bf16", method=0, cluster=True, depth=2)), ("sample", build.Variant(128, 4, 128, "bf16", method=1, threads=256)),
    ("sample", build.Variant(64, 7, 100, "fp16", method=1, every_tile=False, instrument=True)),
    ("sample", build.Variant(256, 1, 32, "bf16", method=2, instrument=True)), ("sample", build.Variant(128, 8, 512, "fp16", method=3)),
    ("flash", build.Variant(128, 4, 256, "bf16", staged=True)), ("flash", build.Variant(256, 8, 512, "fp16", instrument=True)),
    ("flash", build.Variant(64, 3, 128, "bf16", stashed=True)), ("dense", build.Variant(128, 4, 128, "bf16")),
    ("dense", build.Variant(256, 8, 512, "fp16", instrument=True)), ("merge", build.Variant(128, 4, 128, "bf16", cluster=True)),
    ("merge", build.Variant(256, 4, 128, "fp16", instrument=True)), ("topk", build.Variant(128, 5, 300, "bf16", instrument=True)),
    ("topk", build.Variant(256, 4, 128, "fp16")),
)  # fmt: skip


def a_spec(method, score="exact", **more):
    budget = {"k": 8} if method == "topk" else {} if method == "sdpa" else {"samples": 8}
    return Spec(method=method, score=score, B=None if score == "exact" else 4, **budget, **more)


@pytest.mark.parametrize("kernel", build.KERNELS)
def test_sources_include_nothing(kernel):
    assert "#include" not in build.source(f"{kernel}.cu")


def test_every_kernel_and_stage_is_compiled():
    assert {kernel for kernel, _ in COMPILED} == set(build.KERNELS)
    assert {v.method for kernel, v in COMPILED if kernel == "sample"} == {m for m in build.METHODS.values() if m < build.FLASH}
    assert {v.kind for kernel, v in COMPILED if kernel in ("features", "bernoulli")} == set(build.KINDS.values()) - {0}
    for kernel, v in COMPILED:
        assert v.of(kernel) == v, "a field that this kernel doesn't depend on"


@pytest.mark.parametrize(("kernel", "variant"), COMPILED, ids=lambda x: x if isinstance(x, str) else f"method{x.method}-kind{x.kind}-d{x.d}-G{x.group}")
def test_compiles_for_every_architecture(kernel, variant, nvcc, tmp_path):
    path = tmp_path / f"{kernel}.cu"
    path.write_text(build.source(path.name))
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in build.ARCHITECTURES]
    command = [nvcc, "-std=c++17", "-fatbin", "-Werror", "all-warnings", "--threads", "2", *targets, *variant.options(), "-o", str(tmp_path / "out"), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").stat().st_size > 1000


@pytest.mark.parametrize("kernel", build.KERNELS)
def test_parameters_are_read_from_the_source(kernel):
    declared = re.search(rf"^{kernel}\(([^)]*)\)", build.source(f"{kernel}.cu"), flags=re.MULTILINE)[1]
    names, types = zip(*build.parameters(kernel))
    assert len(names) == declared.count(",") + 1 == len(set(names))
    assert types.count(ctypes.c_void_p) == declared.count("*")
    assert dict(build.parameters("sample"))["seed"] is ctypes.c_uint64


def test_every_method_and_score_stage_has_its_kernels():
    for method, score in itertools.product(METHODS, SCORES):
        names = build.stages(a_spec(method, score))
        assert set(names) <= set(build.KERNELS)
        assert ("bernoulli" in names) == (score != "exact")
    assert build.stages(a_spec("s2anta-flash")) == ("flash", "merge")
    assert build.stages(a_spec("s2anta-flash", "bernoulli")) == ("features", "bernoulli", "flash", "merge")
    assert build.stages(a_spec("sdpa")) == ("score", "dense", "merge")
    assert build.stages(a_spec("s2anta-sys", "bernoulli-mean-group")) == ("features", "bernoulli", "sample")
    assert build.method_number(a_spec("s2anta-prop")) == 1
    assert build.method_number(a_spec("s2anta-prop", allocation="systematic")) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [({"d": 96}, "64, 128 or 256"), ({"group": 9}, "1 ... 8"), ({"tile": 513}, "1 ... 512"), ({"precision": "fp32"}, "'bf16' or 'fp16'")],
)
def test_refuses_what_the_kernels_do_not_take(change, says):
    with pytest.raises(InputError, match=says):
        build.Variant(**{"d": 128, "group": 4, "tile": 256, "precision": "bf16"} | change)
