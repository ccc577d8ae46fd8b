"""Who does a sweep's work: this process, processes beside it, or a Dask cluster."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import InputError, SimulationError
from .sweep_identity import code_digest
from .sweep_spawn import Context, without_interrupts
from .sweep_spec import Sweep
from .sweep_work import forget

CLUSTER_WAIT_S = 15
NO_WORKERS_S = 120  # without any, a cluster's sweep ends: others may take the place of those that died
_LOST = ("KilledWorker", "CancelledError", "FutureCancelledError", "FuturesCancelledError", "CommClosedError")  # of distributed
_LOST_TEXT = "a worker died (out of memory, or killed)"


def result_of(future) -> object:
    """What the work gave; SimulationError if who did it died (out of memory, or killed)."""
    try:
        return future.result()
    except Exception as error:
        if isinstance(error, concurrent.futures.process.BrokenProcessPool) or type(error).__name__ in _LOST:
            raise SimulationError(_LOST_TEXT) from None
        raise


class Here:
    """This process does the work, when it is handed in."""

    workers = ahead = 1
    folder = None

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep

    def submit(self, work: Callable, *arguments: object) -> concurrent.futures.Future:
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_result(work(self.sweep, *arguments))
        return future

    def wait(self, futures) -> set:
        return set(futures)

    def cancel(self, futures) -> None:
        """All are done."""


class Local:
    """Processes of this machine; traces pass through files."""

    def __init__(self, sweep: Sweep, folder: Path, workers: int) -> None:
        self.folder, self.workers, self.ahead = folder, workers, 2 * workers
        self.context = Context()
        self.pool = concurrent.futures.ProcessPoolExecutor(workers, self.context, _begin, (sweep, code_digest()))

    def submit(self, work: Callable, *arguments: object) -> concurrent.futures.Future:
        try:
            with without_interrupts():  # the first starts the pool's thread and processes
                return self.pool.submit(_with_sweep, work, *arguments)
        except concurrent.futures.process.BrokenProcessPool:
            raise SimulationError(_LOST_TEXT) from None

    def wait(self, futures) -> set:
        return concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED).done

    def cancel(self, futures) -> None:
        """They end with the processes (the pool trips over futures that others cancelled)."""


_MINE: dict[str, object] = {}  # of a worker: its sweep, and what it can't work for


def _begin(sweep: Sweep, digest: str) -> None:
    """A worker's kernels use one thread (the workers share the cores); it ends with its parent, and at once when it is interrupted."""
    import numba

    numba.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _MINE.update(sweep=sweep, wrong=None if digest == code_digest() else "santa_sim was edited since this process loaded it, and its workers have loaded the new code")


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _with_sweep(work: Callable, *arguments: object) -> object:
    if _MINE["wrong"]:
        raise SimulationError(_MINE["wrong"])
    return work(_MINE["sweep"], *arguments)


class Cluster:
    """A Dask scheduler's workers; traces stay with them."""

    folder = None

    def __init__(self, sweep: Sweep, client) -> None:
        self.client = client
        self.workers = sum(client.nthreads().values())
        self.ahead = 2 * self.workers
        self.sweep = client.submit(_same, sweep, pure=False)  # a task: whoever loses it makes it anew

    def submit(self, work: Callable, *arguments: object):
        return self.client.submit(work, self.sweep, *arguments, pure=False)

    def cancel(self, futures) -> None:
        for future in futures:
            future.cancel()

    def wait(self, futures) -> set:
        from distributed import wait

        alone_since = None
        while True:
            try:
                with self.client.as_current():
                    return set(wait(list(futures), timeout=min(5, NO_WORKERS_S), return_when="FIRST_COMPLETED").done)
            except TimeoutError:
                if self.client.nthreads():
                    alone_since = None
                    continue
                alone_since = alone_since or time.monotonic()
                if time.monotonic() - alone_since >= NO_WORKERS_S:
                    raise SimulationError(f"the scheduler has had no workers for {NO_WORKERS_S:g} s") from None
            except Exception as error:
                if type(error).__name__ in _LOST:
                    raise SimulationError("the scheduler, or its workers, went away") from None
                raise


def _same(sweep: Sweep) -> Sweep:
    return sweep


@contextlib.contextmanager
def workers(sweep: Sweep, folder: Path, jobs: int, scheduler: str | None) -> Iterator[Here | Local | Cluster]:
    """Who does the work: a scheduler's workers if there is one, else `jobs` processes, or this one.

    Raises
    ------
    InputError
        distributed isn't installed, nobody answers at the address, or the scheduler has no workers, or others than ours.
    """
    if scheduler is not None:
        with _client(scheduler) as client:
            yield Cluster(sweep, client)
    elif jobs == 1:
        try:
            yield Here(sweep)
        finally:
            forget()
    else:
        local = Local(sweep, folder, jobs)
        try:
            yield local
        except BaseException:
            local.context.stop()
            raise
        finally:
            local.pool.shutdown(wait=True, cancel_futures=True)


def _client(address: str):
    try:
        import distributed
    except ImportError:
        raise InputError(f"scheduler={address!r} needs Dask: pip install 'santa-sim[cluster]'") from None
    _check_address(address)
    try:
        client = distributed.Client(address, timeout=CLUSTER_WAIT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"scheduler={address!r}: no Dask scheduler answers there ({type(error).__name__}); start one with `dask scheduler` and write "
            f"its address, such as tcp://192.0.2.7:8786"
        ) from None
    try:
        client.wait_for_workers(1, timeout=CLUSTER_WAIT_S)
        _check_code(client, address)
    except TimeoutError:
        client.close()
        raise InputError(f"scheduler={address!r} has no workers; start some with `dask worker {address}`") from None
    except BaseException:
        client.close()
        raise
    return client


def _check_address(address: str) -> None:
    """InputError unless it looks like one: distributed waits for half a minute to tell, and lets go of half a client badly."""
    from distributed.comm.addressing import parse_address, parse_host_port
    from distributed.comm.registry import backends

    try:
        kind, place = parse_address(address)
        host, port = ("here", 1) if kind == "inproc" else parse_host_port(place)
        good = kind in backends and bool(host) and 0 < port < 2**16
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        raise InputError(f"scheduler={address!r} is not the address of a Dask scheduler; write its host and port, such as tcp://192.0.2.7:8786")


def _check_code(client, address: str) -> None:
    """InputError unless all workers run our code: rows must not depend on who makes them."""
    try:
        found = client.run(code_digest)
    except TimeoutError:
        raise
    except Exception as error:
        raise InputError(f"scheduler={address!r}: a worker can't load this version of santa_sim ({type(error).__name__}: {error}): install it there") from None
    other = [worker for worker, digest in found.items() if digest != code_digest()]
    if other:
        raise InputError(f"scheduler={address!r}: santa_sim is of another version on {len(other)} of {len(found)} workers ({other[0]}): install this one there, and start them again")
