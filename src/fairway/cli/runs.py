"""Many runs at once, one process each.

Workers get the loaded scene from their parent and note their progress in shared memory, so nothing but results travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from fairway.cli.output import progress
from fairway.cli.pool import start_method, undisturbed, usable_cores, worker_pool
from fairway.cli.simulation_options import RunError, Scene
from fairway.core.errors import FairwayError

_POLL_S = 0.2


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
    promises: int = 0


_task: _Task | None = None


def run_all(
    scene: Scene, runs: Sequence[SimulationRun], *, processes: int | None, per_job: bool, promises: int = 0
) -> list[dict[str, Any]]:
    """The result documents of all runs, in the order of the runs; the first failure ends everything."""
    global _task
    task = _Task(scene, per_job, start_method().Array("d", len(runs), lock=False), promises)
    workers = min(processes or usable_cores(), len(runs))
    if workers == 1:
        _task = task
        with progress(f"{len(runs)} runs") as report:
            return [_run_inline(run, len(runs), report) for run in runs]
    with worker_pool(workers, _start_worker, task) as pool:
        with undisturbed():
            futures = {pool.submit(_run, run): run for run in runs}
        return _gather(futures, task)


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
        return _task.scene.run(run.policy, run.seed, note, _task.promises).to_dict(per_job=_task.per_job)
    except RunError:
        raise
    except (FairwayError, OSError, MemoryError) as error:
        raise RunError(f"policy {run.policy!r}: {str(error) or 'out of memory'}") from error


def _start_worker(task: _Task) -> None:
    """Take over the task."""
    global _task
    task.scene.world.check_names()
    _task = task
