"""The DRAM inside a SimPy simulation: requests become events, exactly, whoever else is running."""

from __future__ import annotations

import numpy as np
import simpy

from .memory import END_OF_TIME, Dram, Ticket


class DramProcess:
    """Runs a `Dram` beside the other processes of an environment whose time is integer femtoseconds.

    The memory is only ever advanced to the next thing that could bring a new request: the environment's next event, or
    the completion of a request that somebody waits for. So it never has to take back what it decided. It always is advanced
    that far before the environment goes on: what is found out later may complete sooner, as a posted write does.

    Parameters
    ----------
    env : simpy.Environment; memory : Dram, which nobody else advances
    """

    def __init__(self, env: simpy.Environment, memory: Dram) -> None:
        self.env, self.memory = env, memory
        self._waiting: dict[Ticket, simpy.Event] = {}
        self._asked = env.event()
        env.process(self._run())

    def request(
        self,
        addresses: np.ndarray,
        write: bool | np.ndarray = False,
        *,
        ready_fs: np.ndarray | None = None,
        port: int = 0,
    ) -> simpy.Event:
        """Hand in requests now; the event fires when the last of them completes, with their `Ticket` as its value."""
        ticket = self.memory.request(self.env.now, addresses, write, ready_fs=ready_fs, port=port)
        event = self._waiting[ticket] = self.env.event()
        if not self._asked.triggered:
            self._asked.succeed()
        return event

    def _run(self):
        while True:
            if not self._waiting:
                self._asked = self.env.event()
                yield self._asked
            while self.env.peek() <= self.env.now:  # let everybody ask who is going to ask now
                yield self.env.timeout(0)
            horizon = self.env.peek()
            limit = END_OF_TIME * self.memory.config.timing.clock_fs if horizon == float("inf") else horizon
            done = self.memory.next_done(limit)
            for ticket in done:
                after = self.env.timeout(max(0, ticket.last_fs - self.env.now), ticket)
                after.callbacks.append(lambda fired, event=self._waiting.pop(ticket): event.succeed(fired.value))
            if not done and horizon < float("inf"):
                yield self.env.timeout(horizon - self.env.now)
