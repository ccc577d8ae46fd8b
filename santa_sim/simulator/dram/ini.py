"""DRAMsim3 configuration files: the values, defaults and derived quantities that the program uses (commit 2981759)."""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import InputError, choose, suggestion
from .config import DramConfig, checked

# key: (section, default); a default of None means that there is none to fall back on.
_INTEGERS = {
    "bankgroups": ("dram_structure", 2), "banks_per_group": ("dram_structure", 2), "rows": ("dram_structure", 65536),
    "columns": ("dram_structure", 1024), "device_width": ("dram_structure", 8), "BL": ("dram_structure", 8),
    "AL": ("timing", 0), "CL": ("timing", 12), "CWL": ("timing", 12), "tCCD_L": ("timing", 6), "tCCD_S": ("timing", 4),
    "tRTRS": ("timing", 2), "tRTP": ("timing", 5), "tWTR_L": ("timing", 5), "tWTR_S": ("timing", 5),
    "tWR": ("timing", 10),
    "tRP": ("timing", 10), "tRRD_L": ("timing", 4), "tRRD_S": ("timing", 4), "tRAS": ("timing", 24),
    "tRCD": ("timing", 10),
    "tRFC": ("timing", 74), "tRFCb": ("timing", 20), "tREFI": ("timing", 7800), "tREFIb": ("timing", 1950),
    "tFAW": ("timing", 50), "tPPD": ("timing", 0), "t32AW": ("timing", 330), "tRCDRD": ("timing", 24),
    "tRCDWR": ("timing", 20),
    "channel_size": ("system", 1024), "channels": ("system", 1), "bus_width": ("system", 64),
    "cmd_queue_size": ("system", 16),
    "trans_queue_size": ("system", 32),
}  # fmt: skip
_REALS = {
    "tCK": ("timing", 1.0), "VDD": ("power", 1.2), "IDD0": ("power", 48), "IDD2N": ("power", 34),
    "IDD3N": ("power", 43),
    "IDD4W": ("power", 123), "IDD4R": ("power", 135), "IDD5AB": ("power", 250), "IDD5PB": ("power", 5),
}  # fmt: skip
_WORDS = {
    "protocol": ("dram_structure", "DDR3"), "address_mapping": ("system", "chrobabgraco"),
    "queue_structure": ("system", "PER_BANK"),
    "row_buf_policy": ("system", "OPEN_PAGE"), "refresh_policy": ("system", "RANK_LEVEL_STAGGERED"),
}  # fmt: skip
_FLAGS = {
    "bankgroup_enable": ("dram_structure", True), "hbm_dual_cmd": ("dram_structure", True),
    "unified_queue": ("system", False),
    "enable_self_refresh": ("system", False), "aggressive_precharging_enabled": ("system", False),
}  # fmt: skip
# In its own files, but without an effect on timing or energy there (some are never read at all).
_UNUSED = {
    "num_dies", "tRFC2", "tRFC4", "REFI", "tRPRE", "tWPRE", "tWR2", "tCKE", "tCKESR", "tCKSRE", "tXS", "tXP",
    "tRTP_L", "tRTP_S",
    "tRREFD", "tRFCPB", "tCWD", "tCMD", "tCAS", "activation_window_depth", "REFRESH_PERIOD", "ideal_memory_latency",
    "IPP0", "IDD1", "IDD2P", "IDD2Q", "IDD3P", "IDD3Pf", "IDD3Ps", "IDD5", "IDD6", "IDD6L", "IDD6x", "IDD7",
    "write_buf_size", "sref_threshold", "epoch_period", "output_level", "output_prefix", "validation_output",
}  # fmt: skip
_UNUSED_SECTIONS = {"other", "thermal", "hmc"}
_KNOWN = {**_INTEGERS, **_REALS, **_WORDS, **_FLAGS}
_GDDR = ("GDDR5", "GDDR5X", "GDDR6")
_HBM = ("HBM", "HBM2")
_PROTOCOLS = ("DDR3", "DDR4", *_GDDR, "LPDDR", "LPDDR3", "LPDDR4", *_HBM)
_REFRESH = {
    "RANK_LEVEL_STAGGERED": "all-bank",
    "RANK_LEVEL_SIMULTANEOUS": "first-rank",
    "BANK_LEVEL_STAGGERED": "per-bank",
}


def _read(path: Path) -> tuple[dict[str, object], list[str]]:
    """Keys and values of the file, as typed, and notes; every key is checked."""
    out: dict[str, object] = {}
    notes: list[str] = []
    known = {name.lower(): name for name in _KNOWN}
    unused = {name.lower() for name in _UNUSED}
    section = ""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        line = re.split(r"(?:^|\s)[;#]|;", line, maxsplit=1)[0].strip()
        if not line:
            continue
        if line.startswith("["):
            section = line.strip("[] ").lower()
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        where = f"{path.name}, line {number}: {key}"
        if not equals:
            raise InputError(f"{path.name}, line {number}: {line!r} is neither '[section]' nor 'key = value'")
        if section in _UNUSED_SECTIONS or key.lower() in unused:
            continue
        if key.lower() not in known:
            raise InputError(f"{where} is an unknown key{suggestion(key, _KNOWN)}")
        name = known[key.lower()]
        if section != _KNOWN[name][0]:
            raise InputError(f"{where} stands in [{section}]; it belongs in [{_KNOWN[name][0]}]")
        if name in out:
            raise InputError(f"{where} is given a second time; keep one of the two")
        if value:
            out[name] = _value(name, value, where)
        else:
            notes.append(f"{where} has no value; {_KNOWN[name][1]}, DRAMsim3's default")
    return out, notes


def _value(name: str, text: str, where: str) -> object:
    if name in _WORDS:
        return text
    if name in _FLAGS:
        if text.lower() not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
            raise InputError(f"{where} = {text!r} must be true or false")
        return text.lower() in ("true", "yes", "on", "1")
    first = text.split()[0] if text.split() else ""
    try:
        return int(first, 0) if name in _INTEGERS else float(first)
    except ValueError:
        raise InputError(
            f"{where} = {text!r} must be {'a whole number' if name in _INTEGERS else 'a number'}"
        ) from None


def read_ini(path: Path) -> DramConfig:
    """Read a DRAMsim3 configuration; its policy is `dramsim3`.

    Raises
    ------
    InputError
        Names the file and the key: unknown, not a number, or asking for what isn't modelled (HMC, self-refresh).
    """
    given, notes = _read(path)
    v = {name: given.get(name, default) for name, (_, default) in _KNOWN.items()}
    protocol = str(v["protocol"])
    if protocol == "HMC":
        raise InputError(
            f"{path.name}: protocol = 'HMC' is not modelled: its links and vaults are another kind of memory"
        )
    choose(f"{path.name}: protocol", protocol, _PROTOCOLS)
    choose(f"{path.name}: queue_structure", v["queue_structure"], ("PER_BANK", "PER_RANK"))
    choose(f"{path.name}: refresh_policy", v["refresh_policy"], _REFRESH)
    if v["enable_self_refresh"]:
        raise InputError(f"{path.name}: enable_self_refresh = true is not modelled; leave it off")
    for name in (
        "BL",
        "bus_width",
        "device_width",
        "columns",
        "channel_size",
        "channels",
        "rows",
        "bankgroups",
        "banks_per_group",
    ):
        if v[name] < 1:
            raise InputError(f"{path.name}: {name} = {v[name]} must be at least 1")
    if v["tCK"] <= 0:
        raise InputError(f"{path.name}: tCK = {v['tCK']} must be above 0 (nanoseconds)")
    if _REFRESH[v["refresh_policy"]] == "per-bank":
        notes.append("per-bank refresh as DRAMsim3 does it: a refresh can wait long behind its bank's requests, and hold others up")
    gddr, hbm = protocol in _GDDR, protocol in _HBM
    groups, per_group = v["bankgroups"], v["banks_per_group"]
    if not v["bankgroup_enable"]:
        groups, per_group = 1, per_group * groups
    columns = v["columns"] * (v["BL"] if gddr else 2 if hbm else 1)
    devices = v["bus_width"] // v["device_width"]
    if devices < 1:
        raise InputError(f"{path.name}: bus_width = {v['bus_width']} is below device_width = {v['device_width']}")
    rank_mib = columns * v["device_width"] // 8 * v["rows"] * groups * per_group * devices / 2**20
    ranks = int(v["channel_size"] // rank_mib)
    if ranks < 1:
        ranks = 1
        notes.append(
            f"channel_size = {v['channel_size']} MiB is below one rank; one rank of {rank_mib:g} MiB, as DRAMsim3 does"
        )
    single = groups == 1  # it then uses the short constraints for all
    limit = {"GDDR5": 4, "GDDR5X": 8, "GDDR6": 16}.get(protocol, 2)
    if v["BL"] // limit < 1:
        raise InputError(
            f"{path.name}: BL = {v['BL']} is less than one clock of data for {protocol}, which moves {limit} a clock"
        )
    data = {
        "name": path.stem,
        "standard": protocol,
        "organization": {
            "channels": v["channels"], "ranks": ranks, "bank_groups": groups, "banks_per_group": per_group,
            "rows": v["rows"],
            "page_bytes": columns * v["bus_width"] // 8, "bus_bits": v["bus_width"], "burst_length": v["BL"],
            "devices_per_rank": devices, "command_buses": 2 if hbm and v["hbm_dual_cmd"] else 1,
        },
        "timing": {
            "clock_fs": round(v["tCK"] * 1e6), "nBL": v["BL"] // limit, "nCL": v["CL"], "nCWL": v["CWL"],
            "nAL": v["AL"],
            "nRCD_read": v["tRCDRD"] if gddr or hbm else v["tRCD"],
            "nRCD_write": v["tRCDWR"] if gddr or hbm else v["tRCD"],
            "nRP": v["tRP"], "nRAS": v["tRAS"], "nCCD_S": v["tCCD_S"], "nCCD_L": v["tCCD_S" if single else "tCCD_L"],
            "nRRD_S": v["tRRD_S"], "nRRD_L": v["tRRD_S" if single else "tRRD_L"], "nFAW": v["tFAW"],
            "n32AW": v["t32AW"] if gddr else None, "nRTP": v["tRTP"], "nWR": v["tWR"], "nWTR_S": v["tWTR_S"],
            "nWTR_L": v["tWTR_S" if single else "tWTR_L"], "nRTRS": v["tRTRS"], "nPPD": v["tPPD"], "nRFC": v["tRFC"],
            "nRFC_bank": v["tRFCb"], "nREFI": v["tREFI"], "nREFI_bank": v["tREFIb"],
        },
        "address_mapping": v["address_mapping"],
        "policy": {
            "name": "dramsim3", "page": "closed" if v["row_buf_policy"] == "CLOSE_PAGE" else "open",
            "read_queue": v["trans_queue_size"], "write_queue": v["trans_queue_size"],
            "unified_queue": v["unified_queue"],
            "bank_queue": v["cmd_queue_size"], "queue_per": "bank" if v["queue_structure"] == "PER_BANK" else "rank",
            "precharge_spacing": gddr or protocol == "LPDDR4",
        },
        "refresh": {"kind": _REFRESH[v["refresh_policy"]]},
        "energy": {
            "kind": "currents", "vdd_v": v["VDD"], "idd0_ma": v["IDD0"], "idd2n_ma": v["IDD2N"], "idd3n_ma": v["IDD3N"],
            "idd4r_ma": v["IDD4R"], "idd4w_ma": v["IDD4W"], "idd5ab_ma": v["IDD5AB"], "idd5pb_ma": given.get("IDD5PB"),  # its default, 5 mA, lies below standby
        },
        "notes": notes,
    }  # fmt: skip
    return checked(data, path.name)
