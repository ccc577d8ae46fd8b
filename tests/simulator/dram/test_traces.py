"""Trace files in and out."""

import numpy as np
import pytest

from santa_sim.errors import InputError
from santa_sim.simulator.dram import read_trace, replay, replay_chunks, write_trace
from santa_sim.simulator.dram import traces as module


def whole(path):
    chunks = list(read_trace(path))
    ready = None if chunks[0][2] is None else np.concatenate([c[2] for c in chunks])
    return np.concatenate([c[0] for c in chunks]), np.concatenate([c[1] for c in chunks]), ready


@pytest.mark.parametrize("form", module.FORMATS)
def test_round_trip(tmp_path, form, monkeypatch):
    monkeypatch.setattr(module, "LINES", 7)  # several pieces
    rng = np.random.default_rng(0)
    address, write, ready = rng.integers(0, 1 << 33, 50), rng.random(50) < 0.5, np.arange(50) * 3
    assert write_trace(tmp_path / "t.trace", [(address, write, ready)], form) == 50
    got = whole(tmp_path / "t.trace")
    assert np.array_equal(got[0], address) and np.array_equal(got[1], write)
    assert got[2] is None if form == "ramulator" else np.array_equal(got[2], ready)


def test_what_others_write(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("# comment\nLD 0x40\n\nst 128\nR 0x80\nW 0xc0\n")
    assert [v.tolist() for v in whole(path)[:2]] == [[64, 128, 128, 192], [False, True, False, True]]
    path.write_text("0x40 READ 3\n80 write 9\n")
    assert [v.tolist() for v in whole(path)] == [[64, 128], [False, True], [3, 9]]


def test_npz(tmp_path):
    address, write = np.arange(9) * 64, np.arange(9) % 2 == 1
    np.savez(tmp_path / "t.npz", address=address, write=write)
    got = whole(tmp_path / "t.npz")
    assert np.array_equal(got[0], address) and np.array_equal(got[1], write)
    assert replay_chunks(read_trace(tmp_path / "t.npz"), "ddr4_3200") == replay(address, write, "ddr4_3200")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("LD 0x40\nLOAD 0x80\n", "line 2: 'LOAD 0x80' is not a request"),
        ("LD 0x40\n0x80 READ 1\n", "line 2: .* one form in a file"),
        ("LD forty\n", "line 1"),
        ("", "holds no request"),
    ],
)
def test_what_is_not_a_trace(tmp_path, text, match):
    path = tmp_path / "t.trace"
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        list(read_trace(path))


def test_files_that_are_not_there_or_not_right(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        list(read_trace(tmp_path / "none.npz"))
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="not readable as .npz"):
        list(read_trace(tmp_path / "bad.npz"))
    np.savez(tmp_path / "names.npz", addresses=np.zeros(3))
    with pytest.raises(InputError, match="has arrays addresses; it needs 'address' and 'write'"):
        list(read_trace(tmp_path / "names.npz"))
    np.savez(tmp_path / "shape.npz", address=np.zeros(3), write=np.zeros(2, bool))
    with pytest.raises(InputError, match="address has shape"):
        list(read_trace(tmp_path / "shape.npz"))
    with pytest.raises(InputError, match="form='ramulate'"):
        write_trace(tmp_path / "x", [], "ramulate")
