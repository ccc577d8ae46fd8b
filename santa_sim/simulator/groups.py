"""What the schedule knows of a group while it puts the group's jobs into the sequence."""

from __future__ import annotations

from .compile import Group, Item
from .jobs import Job, Once


class GroupState:
    """What is in the sequence of one group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.waits_for_all = bool(group.items["budget"] or group.items["select"])
        self.direct: dict[int, list[Item]] = {}  # tile -> value items that wait for that tile's scores alone
        if not self.waits_for_all:
            for value in group.items["value"]:
                self.direct.setdefault(value.tile, []).append(value)
        self.queries: list[Job] = []  # DRAM and sampler jobs that the scores wait for
        self.scored: dict[int, Job] = {}  # tile -> job after which its exponentials (or its stash) are there
        self.closed: Job | None = None  # budget, or softmax of the selected
        self.fetched: dict[int, tuple[Job, int]] = {}  # row of a value item -> DRAM job of its spilled stash, slots
        self.sampled: dict[int, tuple[list[Job], Job | None]] = {}  # row -> what its rows wait for, its sampler job
        self.accumulated: list[Job] = []
        self.readers: dict[str, Job] = {}  # unit -> last job that needs what this group has on chip
        self.written: list[Once] = []  # write-backs of stash and partials
        self.holds_half = self.holds_bank = False
        self.half_free: list[Job] = []  # what the first job that writes on chip waits for
        self.bank_free: list[Job] = []  # what the first job that accumulates waits for
        self.select = self.selected = self.merge = self.output = None  # Once
        self.merged: Job | None = None
        self.normalized: Job | None = None
