"""How long a sweep takes: an estimate from its first points, and what is left while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from numba.core.event import install_timer

from ..errors import InputError
from .sweep_spec import Sweep
from .sweep_work import play_points, run_kernel

LONG_S = 2 * 3600.0  # a sweep that takes longer wants a yes
_ENOUGH_S = 5.0  # of timing points, once one is timed

Progress = Callable[[str, int, int], None]


def first_points(sweep: Sweep) -> tuple[float, float]:
    """Seconds that a kernel and a point on its trace take  [s], compilation left out; the first kernel, points from all over."""
    made, kernel_s = _timed(run_kernel, sweep, 0, None)
    places = dict.fromkeys([0, sweep.machines // 3, 2 * sweep.machines // 3])
    play_points(sweep, 0, range(1), made)  # it may compile, and makes what the others share
    times: list[float] = []
    for place in places:
        times.append(_timed(play_points, sweep, 0, range(place, place + 1), made)[1])
        if sum(times) > _ENOUGH_S:
            break
    return kernel_s, sum(times) / len(times)


def _timed(work: Callable, *arguments: object) -> tuple[object, float]:
    compiled_s: list[float] = []
    start = time.monotonic()
    with install_timer("numba:compile", compiled_s.append):
        made = work(*arguments)
    return made, max(0.0, time.monotonic() - start - sum(compiled_s))


def check_length(sweep: Sweep, kernels: int, points: int, kernel_s: float, point_s: float, workers: int) -> float:
    """Seconds that what is left of a sweep takes  [s]; InputError if that is too long to start unasked.

    Parameters
    ----------
    kernels, points : left to do
    kernel_s, point_s : what one takes, of the first kernel  [s]
    """
    total_s = (kernels * kernel_s + points * point_s) * mean_size(sweep) / workers
    if total_s > LONG_S:
        raise InputError(
            f"{points:,} points of {kernels:,} kernels would take about {duration(total_s)} on {workers} workers ({point_s:.2g} s a point, "
            f"{kernel_s:.2g} s a kernel): write --yes (yes=True) to run them all the same, fewer values, or --scheduler for more workers"
        )
    return total_s


def mean_size(sweep: Sweep) -> float:
    """Keys of a kernel's workload over those of the first one, averaged over (some of) the kernels."""
    step = max(1, sweep.kernels // 50)
    sizes = []
    for number in range(0, sweep.kernels, step):
        try:
            workload = sweep.kernel(number).workload
        except InputError:
            continue
        sizes.append(sum(workload.lengths) * workload.kv_heads * workload.layers)
    return sum(sizes) / len(sizes) / sizes[0] if sizes and sizes[0] else 1.0


class Clock:
    """Points done, and how long the rest may take.

    Workers start, load and compile before their first part: until each may have done one, what is left is the estimate;
    then it follows the points since.
    """

    def __init__(self, points: int, done: int, workers: int, progress: Progress | None, now: Callable[[], float] = time.monotonic) -> None:
        self.points, self.before, self.workers, self.progress, self.now = points, done, workers, progress, now
        self.done = self.parts = 0
        self.start = now()
        self.estimate_s: float | None = None
        self.settled: tuple[float, int] | None = None  # when each worker may have done a part, and the points until then

    def expect(self, seconds: float | None) -> None:
        """What the whole rest was estimated to take."""
        self.estimate_s, self.start = seconds, self.now()
        self.tell()

    def add(self, points: int) -> None:
        self.done += points
        self.parts += 1
        if self.parts == self.workers:
            self.settled = self.now(), self.done
        self.tell()

    def left_s(self) -> float | None:
        """Seconds left  [s]; None while nobody knows."""
        left = self.points - self.before - self.done
        if self.settled and self.parts >= 2 * self.workers:
            return (self.now() - self.settled[0]) / (self.done - self.settled[1]) * left
        if self.estimate_s is not None:
            return self.estimate_s * left / (self.points - self.before)
        return (self.now() - self.start) / self.done * left if self.done else None

    def tell(self, what: str | None = None) -> None:
        if self.progress is None:
            return
        if what is not None:
            self.progress(what, 0, 1)
            return
        done, left_s = self.before + self.done, self.left_s()
        about = f", about {duration(left_s)} left" if left_s is not None and done < self.points else ""
        self.progress(f"{done:,} of {self.points:,} points{about}", done, self.points)


def duration(seconds: float) -> str:
    """A time to read: '40 s', '12 min', '3.2 h', '5.1 days'."""
    for unit, length, below in (("s", 1, 100), ("min", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if seconds < below:
            return f"{seconds / length:.2g} {unit}" if seconds / length < 10 else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days" if seconds > 10 * 86400 else f"{seconds / 86400:.1f} days"
