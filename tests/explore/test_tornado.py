import ast
import itertools
import json

import pytest
from click.testing import CliRunner
from matplotlib.colors import to_hex

import santa_sim
from santa_sim.cli import main
from santa_sim.errors import InputError
from santa_sim.explore.tornado import Input, Spread, plot_tornado, spread, times, tornado
from santa_sim.schema import validate
from santa_sim.simulator.plot import BLUE, VERMILION

W = "smollm2_decode_2k"


@pytest.fixture(scope="module")
def pair():
    return santa_sim.run(W, "s2anta-prop", 64, precision="bf16"), santa_sim.run(W, "sdpa", precision="bf16")


def test_bars_are_the_ratio_with_one_input_moved(pair):
    frame = tornado(*pair)
    nominal = pair[0].energy_j / pair[1].energy_j
    assert frame.ratio.tolist() == pytest.approx([nominal] * len(frame), rel=1e-12)
    dram = frame[frame.input == "DRAM transfer"].iloc[0]
    parts = [result.energy_breakdown_j["dram_read"] + result.energy_breakdown_j["dram_write"] for result in pair]
    assert dram.ratio_low == pytest.approx(nominal, rel=1e-12)
    assert dram.ratio_high == pytest.approx((pair[0].energy_j + parts[0]) / (pair[1].energy_j + parts[1]), rel=1e-12)
    widths = (frame.ratio_high - frame.ratio_low).abs().tolist()
    assert widths == sorted(widths, reverse=True)
    worst = frame[frame.input == "all at their worst and best"].iloc[0]
    inputs = frame[frame.unit != ""]  # nodes are another table, not an end of this one
    assert worst.ratio_low <= inputs[["ratio_low", "ratio_high"]].min().min() and worst.ratio_high >= inputs[["ratio_low", "ratio_high"]].max().max()
    assert set(frame.attrs["unknown"]) == {"dram_background", "leakage"}


def _moved(result, entries):
    """Energy of a run played on its machine with each of `entries` (entry: factor) of the energy table multiplied  [J]."""
    trace, machine = result.played
    table = machine.energy.model_dump()
    for entry, factor in entries.items():
        name, _, key = entry.partition(".")
        if name == "sram":
            table["sram"] = [{**point, "access_j": point["access_j"] * factor} for point in table["sram"]]
        elif name == "composed":
            table[name] = {**table[name], key: {part: count * factor for part, count in table[name][key].items()}}
        else:
            table[name] = {**table[name], key: table[name][key] * factor}
    return santa_sim.simulate(trace, {"base": result.hardware, "energy": table}).energy_j


def test_every_bar_of_a_table_is_what_simulate_says_with_that_table(pair):
    """Each entry counts once, also where a part of the energy is called as the entry is (sram)."""
    frame = tornado(*pair).set_index("input")
    inputs = [one for one in spread().inputs if one.name in frame.index and one.unit is None and not one.entries[0].startswith("dram_")]
    assert {"SRAM access", "bf16 multiplication", "exponential"} <= {one.name for one in inputs}
    for one in inputs:
        column, end = ("ratio_low", one.low) if one.high == 1 else ("ratio_high", one.high)
        energies = [_moved(result, dict.fromkeys(one.entries, end)) for result in pair]
        assert frame.loc[one.name, column] == pytest.approx(energies[0] / energies[1], rel=1e-12), one.name
    few = [one for one in inputs if one.name in ("SRAM access", "bf16 multiplication")]
    ends = itertools.product(*((one.low, one.high) for one in few))
    every = [[_moved(result, dict(zip((one.entries[0] for one in few), chosen))) for result in pair] for chosen in ends]
    ratios = [first / second for first, second in every]
    together = tornado(*pair, inputs=Spread(inputs=tuple(few))).set_index("input").loc["all at their worst and best"]
    assert (together.ratio_low, together.ratio_high) == pytest.approx((min(ratios), max(ratios)), rel=1e-12)


def test_what_survives(pair):
    value = tornado(*pair, parts=("accumulate", "normalize"))
    assert value.ratio[0] < 1 and value.survives.all()  # adders beat MACs in the value stage whatever the figures
    wild = Spread(inputs=(Input(name="adds", entries=("add_j.fp32",), low=0.0, high=100.0, source="made up"), Input(name="mults", entries=("mult_j.bf16",), low=0.0, high=1.0, source="made up")))
    frame = tornado(pair[1], pair[0], parts=("accumulate", "normalize"), inputs=wild)
    assert frame.ratio[0] > 1 and frame[frame.unit != ""].survives.all()
    together = frame[frame.unit == ""].iloc[0]  # where adds and multiplications are both free, only what normalises is left
    assert together.ratio_low == pytest.approx(pair[1].energy_breakdown_j["normalize"] / pair[0].energy_breakdown_j["normalize"])


def test_other_nodes_scale_logic_and_leave_dram(pair):
    frame = tornado(*pair)
    there = frame[frame.input.str.contains("7 nm")].iloc[0]
    machine = {"technology": {"node_nm": 7, "supply_v": 0.7}}
    scaled = [santa_sim.simulate(result.played[0], {"base": result.hardware, **machine}).energy_j for result in pair]
    assert there.ratio_high == pytest.approx(scaled[0] / scaled[1], rel=1e-9)


def test_area_bars_are_the_ratio_of_areas_with_one_input_moved(pair):
    frame = tornado(*pair, quantity="area").set_index("input")
    areas = [sum(result.area_breakdown_m2.values()) for result in pair]
    assert frame.ratio.iloc[0] == pytest.approx(areas[0] / areas[1], rel=1e-12)
    sram = [result.area_breakdown_m2["sram"] for result in pair]
    assert sram[0] == sram[1] > 0
    for end, factor in (("ratio_low", 0.71), ("ratio_high", 1.66)):
        more = (factor - 1) * sram[0]
        assert frame.loc["SRAM area", end] == pytest.approx((areas[0] + more) / (areas[1] + more), rel=1e-9)
    assert "DRAM transfer" not in frame.index and "leakage" not in frame.index
    assert not {"SRAM area", "area of all lanes"} & set(tornado(*pair).input)  # they move no energy while leakage isn't known
    assert frame.loc["logic and SRAM at 7 nm, 0.7 V", "ratio_high"] == pytest.approx(areas[0] / areas[1], rel=1e-12)
    assert plot_tornado(frame.reset_index()).axes[0].get_xlabel()
    time = tornado(*pair, quantity="area-latency")
    assert time.ratio[0] == pytest.approx(areas[0] * pair[0].latency_s / (areas[1] * pair[1].latency_s), rel=1e-12)
    assert time.survives.all()  # sampling takes less area times time than dense attention whatever the figures


def test_equal_area_turns_with_the_multipliers_area(pair):
    iso = santa_sim.simulate(pair[0].played[0], "adder_hbm3_iso_area")
    frame = tornado(iso, pair[1], quantity="area").set_index("input")
    half = frame.loc["bf16 multiplier area"]
    mac = 4096 + 2048 - 2048  # multipliers that mac_hbm3 has and the other lacks
    areas = [sum(result.area_breakdown_m2.values()) for result in (iso, pair[1])]
    assert half.ratio_low == pytest.approx((areas[0] - 0.5 * 2048 * 1640e-12) / (areas[1] - 0.5 * (2048 + mac) * 1640e-12), rel=1e-9)
    assert not half.survives and frame.loc["SRAM area"].survives
    with pytest.raises(InputError, match="quantity='volume'"):
        tornado(iso, pair[1], quantity="volume")
    with pytest.raises(InputError, match="'dram_read' is not a part of the area"):
        tornado(iso, pair[1], quantity="area", parts=("dram_read",))
    lacks = {"base": "mac_hbm3", "energy": pair[1].played[1].energy.model_dump() | {"sram_area_m2_per_byte": None}}
    with pytest.raises(InputError, match="area of sram is not known on mac_hbm3"):
        tornado(iso, santa_sim.simulate(pair[1].played[0], lacks), quantity="area")


def test_leakage_is_a_bar_of_figures_where_the_table_has_none(pair):
    bar = tornado(*pair).set_index("input").loc["leakage"]
    assert (bar.low, bar.high, bar.unit) == (0, 349e3, "W/m^2")
    leaked = [result.energy_j + 349e3 * result.latency_s * sum(result.area_breakdown_m2.values()) for result in pair]
    assert bar.ratio_low == bar.ratio
    assert bar.ratio_high == pytest.approx(leaked[0] / leaked[1], rel=1e-9)
    table = pair[0].played[1].energy.model_copy(update={"leakage_w_per_m2": 5.0})
    assert times(table, "leakage_w_per_m2", 349e3) is table


def test_every_input_names_its_source_and_an_entry():
    table = santa_sim.load_hardware("adder_hbm3").energy
    for one in spread().inputs:
        assert one.source and (one.low <= 1 <= one.high or one.unit == "W/m^2")
        for entry in one.entries:
            if not entry.startswith("dram_"):
                assert times(table, entry, 2.0) != table


def test_energy_known_on_one_machine_alone_is_refused(pair):
    lpddr5 = santa_sim.run(W, "s2anta-prop", 64, precision="bf16", hardware="adder_lpddr5")
    for two, words in (((lpddr5, pair[1]), "not known on adder_lpddr5 and is known on mac_hbm3"), ((pair[1], lpddr5), "is known on mac_hbm3")):
        with pytest.raises(InputError, match=f"dram_activate, dram_read, dram_write .*{words}.*both unknown") as raised:
            tornado(*two)
    written = ast.literal_eval(str(raised.value).partition("parts=")[2])
    assert tornado(lpddr5, pair[1], parts=written).attrs["unknown"] == []
    assert set(pair[1].energy_breakdown_j) - set(written) == set(lpddr5.energy_unknown)
    frame = tornado(lpddr5, santa_sim.run(W, "sdpa", precision="bf16", hardware="mac_lpddr5"))  # on neither
    assert frame.attrs["unknown"] == ["dram_activate", "dram_background", "dram_read", "dram_write", "leakage"]
    assert "without DRAM, leakage (not known)" in plot_tornado(frame).axes[0].get_xlabel()


def test_plot_and_misuse(pair):
    axes = plot_tornado(tornado(*pair), "prop on adders over dense on MACs").axes[0]
    assert "without DRAM background, leakage (not known)" in axes.get_xlabel()
    of_area = {"SRAM area", "bf16 multiplier area", "fp32 adder area", "area of all lanes"}
    others = {f"{kind} {operation}" for kind in ("fp16", "int8", "int16") for operation in ("addition", "multiplication")}
    shown = {label.get_text().partition(" (")[0] for label in axes.get_yticklabels()}
    assert {one.name for one in spread().inputs} - shown == of_area | others | {"bf16 addition"}  # bf16 adds up in fp32
    assert len(axes.get_yticklabels()) == len(shown)
    assert "leakage (0 … 349000 W/m^2)" in [label.get_text() for label in axes.get_yticklabels()]
    with pytest.raises(InputError, match="not a part"):
        tornado(*pair, parts=("acumulate",))
    gpu = santa_sim.run(W, "sdpa", hardware="h200")
    with pytest.raises(InputError, match="accelerators"):
        tornado(pair[0], gpu)
    with pytest.raises(InputError, match="no factor"):
        validate(Spread, {"inputs": [{"name": "x", "entries": ["sram"], "low": 0, "high": 200, "source": "made up"}]}, "mine")
    with pytest.raises(InputError, match="is not in an energy table"):
        times(santa_sim.load_hardware("adder_hbm3").energy, "mult_j.fp8", 2)


def test_bars_are_those_of_the_types_that_the_runs_spend(pair):
    integers = [santa_sim.run(W, method, S, precision="int8") for method, S in (("s2anta-prop", 64), ("sdpa", None))]
    bars = tornado(*integers).set_index("input")
    assert {"int8 multiplication", "int32 addition"} <= set(bars.index)
    assert not {"bf16 multiplication", "bf16 addition", "int8 addition", "int16 multiplication"} & set(bars.index)
    for column, factor in (("ratio_low", 0.76), ("ratio_high", 1.31)):
        energies = [_moved(result, {"mult_j.int8": factor}) for result in integers]
        assert bars.loc["int8 multiplication", column] == pytest.approx(energies[0] / energies[1], rel=1e-12)
    value = tornado(*pair, parts=("accumulate", "normalize"))
    assert set(value.input) == {"bf16 multiplication", "fp32 addition", "fp32 multiplication", "all at their worst and best",
                                "logic and SRAM at 7 nm, 0.7 V", "logic and SRAM at 16 nm, 0.8 V"}  # fmt: skip
    assert tornado(*pair, parts="accumulate").equals(tornado(*pair, parts=["accumulate"]))


def test_only_the_same_work_is_compared(pair):
    longer = santa_sim.run(santa_sim.workload.replace(W, n_k=1024, source={"type": "gaussian"}), "sdpa", precision="bf16")
    with pytest.raises(InputError, match=r"n_k is \[2048\] in the first and \[1024\] in the second"):
        tornado(pair[0], longer)
    with pytest.raises(InputError, match=f"workload is '{W}' in the first and 'mine' in the second"):
        tornado(pair[0], santa_sim.run(santa_sim.workload.replace(W, name="mine"), "sdpa", precision="bf16"))


def test_what_is_no_result_no_table_and_no_part_is_named(pair):
    with pytest.raises(InputError, match="results of run\\(\\) or simulate\\(\\), not str: 'a'"):
        tornado("a", "b")
    with pytest.raises(InputError, match="this DataFrame lacks input, ratio_low"):
        plot_tornado(pair[0].to_frame())
    with pytest.raises(InputError, match="this str lacks"):
        plot_tornado("a")
    for nothing in ([], (), "", [""]):
        with pytest.raises(InputError, match="names no part"):
            tornado(*pair, parts=nothing)


def test_the_legend_says_what_the_colours_are(pair):
    def legend(frame):
        return [text.get_text() for text in plot_tornado(frame).legends[0].get_texts()]

    frame = tornado(*pair)
    assert frame.survives.all()
    names = ["at the low end", "at the high end, or at the node", "nominal", "as much as the other"]
    assert legend(frame) == names
    frame.loc[0, "survives"] = False
    assert legend(frame) == [*names[:2], "the winner changes", *names[2:]]
    assert {BLUE, VERMILION} == {to_hex(bar.get_facecolor()).upper() for bar in plot_tornado(frame).axes[0].patches}


def test_the_command_is_the_function(pair, tmp_path):
    base = ["tornado", W, "--method", "s2anta-prop", "-S", "64", "--precision", "bf16"]
    files = ["-o", str(tmp_path / "t.csv"), "--plot", str(tmp_path / "t.svg")]
    made = CliRunner().invoke(main, [*base, "--parts", "accumulate, normalize", "--json", *files])
    frame = tornado(*pair, parts=("accumulate", "normalize"))
    printed = json.loads(made.output)
    assert (printed["first"], printed["second"]) == ("s2anta-prop, S = 64 on adder_hbm3", "sdpa on mac_hbm3")
    assert printed["ratio"] == frame.ratio[0] and printed["unknown"] == frame.attrs["unknown"]
    assert [row["ratio_high"] for row in printed["inputs"]] == pytest.approx(frame.ratio_high.tolist(), rel=1e-12)
    assert (tmp_path / "t.csv").read_text().count("\n") == len(frame) + 1 and "<svg" in (tmp_path / "t.svg").read_text()
    same = CliRunner().invoke(main, [*base, "--over", "s2anta-prop", "--over-hardware", "mac_hbm3", "--quantity", "area"]).output
    assert "over s2anta-prop, S = 64 on mac_hbm3" in same and "area: 0." in same and "SRAM area" in same


def test_the_commands_budgets_go_to_the_methods_that_take_them():
    base = ["tornado", W, "--precision", "bf16", "--quantity", "area", "--json"]
    sampled, kept = ["s2anta-prop", "-S", "16"], ["topk", "--k", "64"]
    printed = json.loads(CliRunner().invoke(main, [*base, "--method", *sampled, "--over", *kept]).output)
    assert (printed["first"], printed["second"]) == ("s2anta-prop, S = 16 on adder_hbm3", "topk, k = 64 on mac_hbm3")
    printed = json.loads(CliRunner().invoke(main, [*base, "--method", *kept, "--over", *sampled, "--allocation", "systematic"]).output)
    assert (printed["first"], printed["second"]) == ("topk, k = 64 on mac_hbm3", "s2anta-prop, S = 16 on adder_hbm3")
    for wrong, message in ((["--method", "s2anta-prop", "--over", *kept], "S is missing"), (["--method", *sampled, "--over", "topk"], "k is missing"),
                           (["--method", *sampled, "--k", "64"], "k=64: only method 'topk'"), (["--method", *sampled, "--parts", " ,"], "names no part")):  # fmt: skip
        refused = CliRunner().invoke(main, [*base, *wrong])
        assert refused.exit_code == 2 and message in refused.stderr
