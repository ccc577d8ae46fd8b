"""Sources that stand alone and compile for every architecture; what the kernels refuse."""

import subprocess

import pytest
from santa_sim.gpu import build

from santa_sim import InputError
from santa_sim.methods.spec import Spec

# each source with every value stage it has, both builds, and types, head dimensions, groups and tiles in between
COMPILED = (
    ("score.cu", build.Variant(128, 4, 256, "bf16", staged=True)), ("score.cu", build.Variant(64, 7, 100, "fp16", method=build.TOPK, instrument=True)),
    ("score.cu", build.Variant(256, 1, 32, "bf16", instrument=True)), ("sample.cu", build.Variant(128, 4, 256, "bf16", method=0, cluster=True)),
    ("sample.cu", build.Variant(64, 7, 100, "fp16", method=1, every_tile=False, instrument=True)),
    ("sample.cu", build.Variant(256, 1, 32, "bf16", method=2, instrument=True)), ("sample.cu", build.Variant(128, 8, 512, "fp16", method=3)),
    ("flash.cu", build.Variant(128, 4, 256, "bf16", method=build.FLASH, cluster=True, staged=True)),
    ("flash.cu", build.Variant(256, 8, 512, "fp16", method=build.FLASH, instrument=True)),
    ("topk.cu", build.Variant(128, 5, 300, "bf16", method=build.TOPK, instrument=True)),
)  # fmt: skip


@pytest.mark.parametrize("file", sorted(set(build.SOURCES.values())))
def test_sources_include_nothing(file):
    assert "#include" not in build.source(file)


def test_every_source_and_value_stage_is_compiled():
    assert {file for file, _ in COMPILED} == set(build.SOURCES.values())
    assert {variant.method for _, variant in COMPILED} == set(build.METHODS.values())


@pytest.mark.parametrize(("file", "variant"), COMPILED, ids=lambda x: x if isinstance(x, str) else f"method{x.method}-d{x.d}-G{x.group}")
def test_compiles_for_every_architecture(file, variant, nvcc, tmp_path):
    path = tmp_path / file
    path.write_text(build.source(file))
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in build.ARCHITECTURES]
    command = [nvcc, "-std=c++17", "-fatbin", "-Werror", "all-warnings", *targets, *variant.options(), "-o", str(tmp_path / "out"), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").stat().st_size > 1000


@pytest.mark.parametrize(
    ("change", "says"),
    [({"d": 96}, "64, 128 or 256"), ({"group": 9}, "1 ... 8"), ({"tile": 513}, "1 ... 512"), ({"precision": "fp32"}, "'bf16' or 'fp16'")],
)
def test_refuses_what_the_kernels_do_not_take(change, says):
    with pytest.raises(InputError, match=says):
        build.Variant(**{"d": 128, "group": 4, "tile": 256, "precision": "bf16"} | change)


def test_methods_that_are_not_there_are_named():
    with pytest.raises(InputError, match="'sdpa' is not on the GPU yet; choose from s2anta-flash"):
        build.method_number(Spec(method="sdpa"))
    with pytest.raises(InputError, match="score='bernoulli'"):
        build.method_number(Spec(method="s2anta-sys", samples=8, score="bernoulli", B=4))
    assert build.method_number(Spec(method="s2anta-prop", samples=8)) == 1
    assert build.method_number(Spec(method="s2anta-prop", samples=8, allocation="systematic")) == 0
