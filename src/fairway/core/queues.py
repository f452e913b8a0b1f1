"""Tasks of jobs in the order in which each GPU runs them.

A job may be scheduled as tasks instead of a gang. Its work is done in rounds; a round has one task for each GPU of the
gang that the job asks for. The tasks of a round may run one after the other, on fewer GPUs and on different GPU types.
All of them have to be synchronised before the next round begins.

A round is named by `until`: how much of the job's work is done when it is over. So a decision may divide the work that
is left into rounds as it likes. A round that has begun keeps its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fairway.core import columns as c

if TYPE_CHECKING:
    from fairway.core.snapshot import Snapshot


class TaskTerms(NamedTuple):
    """What an engine knows about the tasks of a job: the rounds of a job that begins, each of one step of its gang, and
    what part of a round it computes, by GPU type. The rest it synchronises."""

    rounds: float
    computes: tuple[float, ...]


class Task(NamedTuple):
    """One task of a round of a job, which is given by its number."""

    job: int
    until: float


Queues: TypeAlias = Mapping[int, tuple[Task, ...]]
"""The tasks that each GPU runs, in order. A GPU starts its next task once the task's round may begin."""
NO_QUEUES: Queues = MappingProxyType({})


class RunningTask(NamedTuple):
    """A task that a GPU computes until `ends_s`; it is synchronised at `synced_s`."""

    gpu: int
    ends_s: float
    synced_s: float


class OpenRound(NamedTuple):
    """A round that has begun and is not over. `synced_s` is when all tasks that have ended so far are synchronised."""

    until: float
    begun: int
    running: tuple[RunningTask, ...]
    synced_s: float

    def plain(self) -> list[Any]:
        """The round as JSON values."""
        return [self.until, self.begun, [list(task) for task in self.running], self.synced_s]

    @staticmethod
    def from_plain(values: list[Any]) -> OpenRound:
        """Read what `plain` gave."""
        until, begun, running, synced_s = values
        return OpenRound(until, begun, tuple(RunningTask(*task) for task in running), synced_s)


def plain_queues(queues: Queues) -> dict[str, Any]:
    """Queues as JSON values."""
    return {str(gpu): [list(task) for task in tasks] for gpu, tasks in queues.items()}


def queues_from_plain(data: Mapping[str, Any]) -> Queues:
    """Read what `plain_queues` gave."""
    return {int(gpu): tuple(Task(*task) for task in tasks) for gpu, tasks in data.items()}


def problem_in(queues: Queues, snapshot: Snapshot) -> str | None:
    """What is wrong with queues: a GPU or a job that is not there, an incomplete round, or an order without end."""
    cluster, rows = snapshot.cluster, {int(job): row for row, job in enumerate(snapshot.jobs)}
    wanted: dict[int, dict[float, int]] = {}
    for gpu, tasks in queues.items():
        if not 0 <= gpu < cluster.gpu_count:
            return f"there is no GPU {gpu} to run tasks on"
        node = cluster.node_of_gpu[gpu]
        if tasks and (node in snapshot.down_nodes or gpu in snapshot.withheld_gpus):
            return f"GPU {gpu} has a queue, but cannot be used now"
        for job, until in tasks:
            if job not in rows:
                return f"GPU {gpu} has a task of job number {job}, which is not active"
            if not snapshot.speeds[cluster.node_type[node], rows[job]] > 0:
                return f"GPU {gpu} has a task of job {snapshot.job_id(job)!r}, which cannot run there"
            counts = wanted.setdefault(job, {})
            counts[until] = counts.get(until, 0) + 1
    for job, counts in wanted.items():
        problem = _problem_in_rounds(snapshot, rows[job], counts)
        if problem is not None:
            return f"job {snapshot.job_id(job)!r} {problem}"
    return None if _ends(queues, wanted) else "the queues wait for each other"


def _problem_in_rounds(snapshot: Snapshot, row: int, counts: dict[float, int]) -> str | None:
    """What is wrong with the rounds of a job, whose tasks are counted by the end of their round."""
    gang, opened = int(snapshot.gpus[row]), snapshot.facts(row).round
    if opened is None and snapshot.held[row]:
        return "holds its GPUs as a gang, but has tasks in queues"
    done = float(snapshot.progress[row]) if opened is None else opened.until
    for until in sorted(counts):
        begun = opened is not None and until == opened.until
        missing = gang - opened.begun if opened is not None and begun else gang
        if counts[until] != missing:
            return f"has {counts[until]} tasks of a round in queues, not {missing}"
        if not begun and not done < until and snapshot.floats[c.WORK, row] > 0:
            return "has a task of a round that is over"
    if opened is not None and opened.begun < gang and opened.until not in counts:
        return "has begun a round, but not all of its tasks are in queues"
    return None


def _ends(queues: Queues, wanted: dict[int, dict[float, int]]) -> bool:
    """Whether all tasks can run in this order: no task waits, directly or through others, for one behind it."""
    left = {job: sorted(counts.items(), reverse=True) for job, counts in wanted.items()}
    at = dict.fromkeys(queues, 0)
    waiting: dict[int, list[int]] = {}
    ready, open_tasks = list(queues), {job: rounds[-1][1] for job, rounds in left.items()}
    ran = 0
    while ready:
        gpu = ready.pop()
        tasks = queues[gpu]
        while at[gpu] < len(tasks):
            job, until = tasks[at[gpu]]
            if left[job][-1][0] != until:
                waiting.setdefault(job, []).append(gpu)
                break
            at[gpu] += 1
            ran += 1
            open_tasks[job] -= 1
            if not open_tasks[job]:
                left[job].pop()
                open_tasks[job] = left[job][-1][1] if left[job] else 0
                ready += waiting.pop(job, ())
    return ran == sum(len(tasks) for tasks in queues.values())
