"""Whether the items of a trace hang together: what stands before what, what closes a group, what one item can take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import InputError
from .memory import bursts_upper_bound

if TYPE_CHECKING:
    from .compile import Group, Item

LARGEST_BURSTS = 2**27  # of one item: their addresses are listed


def check_order(group: Group, item: Item) -> None:
    """InputError if an item stands before what it waits for, or twice where there can be one."""
    items, where = group.items, f"trace row {item.row}: {item.stage!r} item"
    if item.stage in ("budget", "select", "merge", "output") and items[item.stage]:
        raise InputError(f"{where} is the second of its sequence, layer, KV head and query block; there can be one")
    if item.stage in ("budget", "select") and (items["budget"] or items["select"]):
        raise InputError(f"{where} comes with the other of 'budget' and 'select'; there can be one of them")
    if item.stage != "output" and items["output"]:
        raise InputError(f"{where} stands after the 'output' item that closes its group")
    if item.stage == "score" and item.tile in group.by_tile:
        raise InputError(f"{where} is the second of tile {item.tile}; a tile is scored once, for all grouped queries")
    if item.stage == "score" and (items["budget"] or items["select"] or items["merge"]):
        raise InputError(f"{where} stands after the 'budget', 'select' or 'merge' item that waits for it")
    if item.stage in ("budget", "select") and items["value"]:
        raise InputError(f"{where} stands after a 'value' item that waits for it")
    if item.stage == "value" and items["merge"]:
        raise InputError(f"{where} stands after the 'merge' item that waits for it")
    if item.stage == "value" and not (items["budget"] or items["select"]) and item.tile not in group.by_tile:
        raise InputError(f"{where} of tile {item.tile} has no 'score' item of that tile before it")


def check_closed(groups: Mapping[tuple, Group]) -> None:
    """InputError if a group, by its (sequence, layer, KV head, query block), has no 'output' item."""
    for (sequence, layer, head, block), group in groups.items():
        if not group.items["output"]:
            row = max(item.row for items in group.items.values() for item in items)
            raise InputError(
                f"trace row {row}: no 'output' item after it closes sequence {sequence}, layer {layer}, KV head {head}, "
                f"query block {block}; write one behind its other items"
            )


def check_size(item: Item, burst: int) -> None:
    """InputError if an item takes more bursts than can be listed."""
    bursts = sum(bursts_upper_bound(region.nbytes, region.piece, burst) for region in (*item.reads, *item.writes))
    if item.gather is not None:
        bursts += bursts_upper_bound(item.gather.row_bytes, item.gather.row_bytes, burst) * len(item.gather.rows)
    if bursts > LARGEST_BURSTS:
        raise InputError(
            f"trace row {item.row}: {item.stage!r} item takes up to {bursts:,} bursts of memory.burst_bytes={burst}, a "
            f"machine takes {LARGEST_BURSTS:,} at most in one: split it into tiles"
        )
