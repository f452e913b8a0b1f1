"""Nodes that an operator has drained: nothing is started there, and what runs there ends, or moves if that is wanted.

A job can be moved if it goes on elsewhere from a checkpoint. The journal keeps which nodes are drained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairway.core.errors import FairwayError
from fairway.core.event import Event
from fairway.runtime.jobs.commands import Commands
from fairway.runtime.jobs.life import Command, Settle, Stop
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.records import JobRecord, JobState

DRAINED = "drained"
"""The source of reasons to block GPUs, and the fact of the journal."""


class UnknownNodeError(FairwayError):
    """There is no node with this name."""


class Drain(NamedTuple):
    """Who has drained a node, and why; "" if that was not said."""

    by: str
    why: str

    @property
    def text(self) -> str:
        """The same in words."""
        return f"drained by {self.by}{f': {self.why}' if self.why else ''}"


class Draining:
    """The drained nodes, by name. `facts` are those of the journal, and `keep` writes facts down."""

    def __init__(
        self, jobs: LiveJobs, commands: Commands, facts: Mapping[str, Any], keep: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.nodes: Mapping[str, Drain] = {name: Drain(*about) for name, about in (facts.get(DRAINED) or {}).items()}
        self._jobs = jobs
        self._commands = commands
        self._keep = keep
        self.block()

    def block(self) -> None:
        """Block the GPUs of all drained nodes that are there."""
        cluster, blocked = self._jobs.state.cluster, dict[int, str]()
        for gpu, node in enumerate(cluster.node_of_gpu):
            drain = self.nodes.get(cluster.nodes[node].name)
            if drain is not None:
                blocked[gpu] = f"node {cluster.nodes[node].name} is {drain.text}"
        self._jobs.blocked.set(blocked, DRAINED)

    def drain(self, name: str, drain: Drain, *, move: bool) -> Command:
        """The command that drains a node, and returns the jobs that leave it now."""

        def command(now_s: float) -> tuple[list[Event], list[JobRecord]]:
            self._refuse_unknown(name)
            self._set({**self.nodes, name: drain})
            moved = [record for record in self._jobs.store if self._may_move(record, name)] if move else []
            date_s, text = self._jobs.date_s(now_s), f"leaves the node {name}, which is {drain.text}"
            for record in moved:
                self._jobs.store.note(record, date_s, "requeued", text)
            events = [event for record in moved for event in self._leave(record, now_s)]
            return [*events, *self._jobs.off_blocked(now_s)], moved

        return command

    def undrain(self, name: str) -> Command:
        """The command that lets jobs start on a node again."""

        def command(now_s: float) -> tuple[list[Event], None]:
            self._refuse_unknown(name)
            self._set({other: drain for other, drain in self.nodes.items() if other != name})
            return [], None

        return command

    def _refuse_unknown(self, name: str) -> None:
        names = [node.name for node in self._jobs.state.cluster.nodes]
        if name not in names:
            are = "is" if len(names) == 1 else "are"
            raise UnknownNodeError(f"there is no node {name!r}; there {are} {', '.join(names)}")

    def _set(self, nodes: Mapping[str, Drain]) -> None:
        self.nodes = nodes
        self.block()
        self._keep({DRAINED: {name: list(drain) for name, drain in nodes.items()} or None})
        self._jobs.instructions.append(Settle())

    def _may_move(self, record: JobRecord, name: str) -> bool:
        """Whether a job is on a node and can leave it without losing its work."""
        attempt, request = record.open_attempt, record.request
        if record.state.ended or attempt is None or name not in self._jobs.state.cluster.names_of(attempt.gpus):
            return False
        saves = request.preempt == "checkpoint" or record.progress.checkpoint is not None
        return saves and request.preempt != "never" and record.state in (JobState.RUNNING, JobState.SUSPENDED)

    def _leave(self, record: JobRecord, now_s: float) -> list[Event]:
        self._jobs.store.touch(record)
        if record.state is JobState.RUNNING:
            return self._commands.requeue(record, now_s)
        # It stands still there. It goes on from its checkpoint when its processes are gone.
        self._jobs.instructions.append(Stop(record.number))
        return []
