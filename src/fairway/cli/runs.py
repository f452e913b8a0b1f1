"""Many runs at once, one process each.

Workers get the loaded scene from their parent and note their progress in shared memory, so nothing but results travels.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from fairway.cli.output import progress
from fairway.cli.simulation_options import RunError, Scene
from fairway.core.errors import FairwayError

_POLL_S = 0.2
_ENDING = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """One simulation of many: it differs from the others by policy and seed."""

    index: int
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class _Task:
    """What is the same for all runs; `shares` holds how much of each run is done."""

    scene: Scene
    per_job: bool
    shares: Any


_task: _Task | None = None


def run_all(
    scene: Scene, runs: Sequence[SimulationRun], *, processes: int | None, per_job: bool
) -> list[dict[str, Any]]:
    """The result documents of all runs, in the order of the runs; the first failure ends everything."""
    global _task
    method = "fork" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(method)
    task = _Task(scene, per_job, context.Array("d", len(runs), lock=False))
    workers = min(processes or usable_cores(), len(runs))
    if workers == 1:
        _task = task
        with progress(f"{len(runs)} runs") as report:
            return [_run_inline(run, len(runs), report) for run in runs]
    strangers = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(task,)) as pool:
        try:
            # All workers start with the first task, before the progress bar starts a thread: forks and threads do not
            # mix.
            with _undisturbed():
                futures = {pool.submit(_run, run): run for run in runs}
            return _gather(futures, task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - strangers:
                worker.terminate()
            raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait: between a fork and its note in our books, an interrupt would leave a worker behind."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gather(futures: dict[Future[dict[str, Any]], SimulationRun], task: _Task) -> list[dict[str, Any]]:
    results: dict[int, dict[str, Any]] = {}
    pending = set(futures)
    with progress(f"{len(futures)} runs") as report:
        while pending:
            done, pending = wait(pending, timeout=_POLL_S if report else None, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: futures[future].index):
                run = futures[future]
                try:
                    results[run.index] = future.result()
                except BrokenProcessPool:
                    message = f"policy {run.policy!r}: a worker process died, perhaps out of memory; try --jobs 1"
                    raise RunError(message) from None
            if report:
                report(int(1000 * sum(task.shares)), 1000 * len(futures))
    return [results[index] for index in sorted(results)]


def _run_inline(run: SimulationRun, total: int, report: Any) -> dict[str, Any]:
    def note() -> None:
        if report and _task is not None:
            report(int(1000 * sum(_task.shares)), 1000 * total)

    return _run(run, note)


def _run(run: SimulationRun, after_progress: Any = None) -> dict[str, Any]:
    """One simulation, in a worker or inline; every failure names its policy."""
    assert _task is not None
    shares = _task.shares

    def note(done: int, total: int) -> None:
        shares[run.index] = done / max(total, 1)
        if after_progress:
            after_progress()

    try:
        return _task.scene.run(run.policy, run.seed, note).to_dict(per_job=_task.per_job)
    except RunError:
        raise
    except (FairwayError, OSError, MemoryError) as error:
        raise RunError(f"policy {run.policy!r}: {str(error) or 'out of memory'}") from error


def _start_worker(task: _Task) -> None:
    """Take over the task; end silently with a signal, and never outlive the parent."""
    global _task
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    task.scene.world.check_names()
    _task = task


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
