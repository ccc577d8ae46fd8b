"""Processes for a sweep, started so that neither the caller's script nor Ctrl-C is their business."""

from __future__ import annotations

import contextlib
import multiprocessing.context
import signal
import sys
import threading
from collections.abc import Iterator

_STARTING = threading.Lock()


class Context(multiprocessing.context.SpawnContext):
    """Starts processes that don't run the caller's `__main__` again (they need nothing of it, and a script without
    `if __name__ == "__main__"` would start its sweep in each), and that Ctrl-C doesn't reach while they import: `stop` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started: list[multiprocessing.context.SpawnProcess] = []

    def Process(self, *arguments: object, **named: object) -> multiprocessing.context.SpawnProcess:  # noqa: N802 (multiprocessing's name)
        process = _Process(*arguments, **named)
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self.started:
            if process.pid is not None and process.is_alive():
                process.terminate()


class _Process(multiprocessing.context.SpawnProcess):
    def start(self) -> None:
        with _STARTING, _hidden_main(), without_interrupts():
            super().start()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """`__main__` as if it came from nowhere: where it does, a process runs it as it starts."""
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        for name in kept:
            setattr(main, name, None)
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Ctrl-C waits until what is started is started whole; a process inherits that its SIGINT waits, and lets it through when it
    is ready."""
    came: list[tuple] = []
    handler = signal.getsignal(signal.SIGINT)
    held = callable(handler) and threading.current_thread() is threading.main_thread()  # elsewhere it interrupts nothing
    if held:
        signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if held:
            signal.signal(signal.SIGINT, handler)
            if came:
                handler(*came[0])
