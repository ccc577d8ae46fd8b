"""Buffers between the units: how many slots a machine gives each, and how much an order lets wait there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..hardware_model import Hardware

WORK = ("weights", "stash_reads", "rows")  # what waits to be sampled, and for its rows
PRODUCERS = ("softmax", "budget", "accumulate", "merge", "output")  # what they write back waits in a buffer each
EVERY = 2**62


def capacities(hardware: Hardware) -> dict[str, int]:
    """Slots of each buffer."""
    return {
        "q_buffer": 2,
        "k_buffer": hardware.k_buffer.tiles,
        "v_buffer": hardware.v_buffer.tiles,
        "scores": hardware.score.queue_tiles,
        "weights": hardware.weights_buffer.tiles,
        "stash_reads": hardware.weights_buffer.tiles,
        "rows": hardware.gather.queue_items,
        "stash_tiles": hardware.sampler.queue_tiles,
        **{f"{unit}_writes": hardware.write_buffer.tiles for unit in PRODUCERS},
        "output_writes": hardware.output.buffer_items,
    }


@dataclasses.dataclass(frozen=True)
class Waiting:
    """How many pieces of work that was put off may wait, whatever the buffers hold.

    Attributes
    ----------
    work : exponentials, or stash that was read, for their sampling; sampled tiles for their rows
    writes : results for their write-back, of each unit that has some
    outputs : outputs for theirs
    """

    work: int = EVERY
    writes: int = EVERY
    outputs: int = EVERY

    @property
    def limits(self) -> dict[str, int]:
        """By buffer."""
        return {
            **dict.fromkeys(WORK, self.work), **{f"{unit}_writes": self.writes for unit in PRODUCERS}, "output_writes": self.outputs,
        }  # fmt: skip
