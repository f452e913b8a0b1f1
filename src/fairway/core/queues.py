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
from typing import Any, NamedTuple, TypeAlias


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
