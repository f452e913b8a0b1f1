"""The nodes of a live cluster: which of them do not answer, are lost or drained, and what that means for jobs.

On a node that does not answer nothing is started; what runs there goes on. A lost node is given up: its jobs leave it
at once, and run elsewhere from their last checkpoints. That is no failure of theirs. On a drained node nothing is
started either, because an operator wants it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fairway.core.cluster import Cluster
from fairway.core.event import Event, JobEvicted, NodeLost, NodeRestored, Woken
from fairway.runtime.jobs import life
from fairway.runtime.jobs.estimates import grown_speeds, speeds_of
from fairway.runtime.jobs.life import NODE_LOST, ClusterGrew, Converge, NodeChanged, Settle, Stop
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.processes.site import NodeChange

AWAY = "away"
"""The source of reasons to block GPUs: their node does not answer, or is lost."""
_WORDS = {"unreachable": "does not answer", "lost": "is lost"}


class LiveNodes:
    """All nodes. `grown` is called with the cluster and its devices when nodes have joined."""

    def __init__(self, jobs: LiveJobs, grown: Callable[[ClusterGrew], None]) -> None:
        self.away: Mapping[int, NodeChange] = {}
        self._jobs = jobs
        self._grown = grown
        jobs.interpret(NodeChanged, self.changed)
        jobs.interpret(ClusterGrew, self.grew)

    @property
    def cluster(self) -> Cluster:
        """The nodes, by number."""
        return self._jobs.state.cluster

    def changed(self, one: NodeChanged) -> list[Event]:
        """A node is up, does not answer, or is lost. The site may say so again; that changes nothing."""
        node, status, _ = one.change
        state, now_s = self._jobs.state, one.time_s
        known = self.away.get(node)
        away = {other: change for other, change in self.away.items() if other != node}
        self.away = away if status == "up" else {**away, node: one.change}
        self._jobs.blocked.set(self._blocked(), AWAY)
        events: list[Event] = []
        if status == "lost":
            events += [] if node in state.occupancy.down else [NodeLost(now_s, node)]
            events += [event for record in self._jobs.store for event in self._lost(record, node, now_s)]
        elif status == "unreachable":
            events += self._jobs.off_blocked(now_s)
        elif node in state.occupancy.down:
            events.append(NodeRestored(now_s, node))
        if not events and (known.status if known else "up") == status:
            return []
        self._jobs.instructions.append(Settle())
        return [*events, Woken(now_s)]

    def grew(self, one: ClusterGrew) -> list[Event]:
        """Nodes have joined. Jobs may run there from now on."""
        jobs, cluster = self._jobs, one.joined.cluster
        if len(cluster.nodes) == len(self.cluster.nodes):
            return []
        types = len(self.cluster.types)
        seen = jobs.observations
        speeds = {
            job: grown_speeds(known, speeds_of(jobs.store[job].request, cluster), in_steps=seen.counts_steps(job))
            for job, known in jobs.state.speeds().items()
        }
        jobs.state.grow(cluster, speeds)
        if len(cluster.types) > types:
            # What a policy remembers is by GPU type.
            jobs.state.memory = {}
        jobs.eligibility.grew(one.time_s)
        self._grown(one)
        jobs.instructions.append(Settle())
        return [Woken(one.time_s)]

    def _blocked(self) -> dict[int, str]:
        return {gpu: self.told(change) for node, change in self.away.items() for gpu in self._gpus(node)}

    def told(self, change: NodeChange) -> str:
        """What is wrong with a node, in words."""
        why = f" ({change.why})" if change.why else ""
        return f"node {self.cluster.nodes[change.node].name} {_WORDS[change.status]}{why}"

    def _gpus(self, node: int) -> range:
        first = self.cluster.first_gpu[node]
        return range(first, first + self.cluster.nodes[node].gpus)

    def _lost(self, record: JobRecord, node: int, now_s: float) -> list[Event]:
        """Take a job off a node that is lost, if it is there or was to be."""
        jobs, there = self._jobs, self._gpus(node)
        attempt, held = record.open_attempt, jobs.state.held_gpus.get(record.number, ())
        booked = _meet(held, there)
        broken = attempt is not None and attempt.cause != NODE_LOST and _meet(attempt.gpus, there)
        if record.state.ended or not (booked or broken):
            return []
        why = f"its node {self.cluster.nodes[node].name} is lost"
        jobs.store.touch(record)
        if attempt is not None and broken:
            attempt.cause = NODE_LOST
            # What is left of a gang on other nodes has nothing to save.
            jobs.instructions.append(Stop(record.number, hurry=True))
        if held and not booked:
            # It was about to leave, and has got GPUs elsewhere. It starts there when its processes are gone.
            return []
        if broken or record.state is JobState.RUNNING:
            to = JobState.SUSPENDED if record.suspended else JobState.PREEMPTED
            life.move(record, to, jobs.date_s(now_s), why)
        jobs.eligibility.note_off(record, now_s)
        jobs.instructions.append(Converge(record.number))
        return [JobEvicted(now_s, record.number, jobs.observations.saved(record), why)]


def _meet(gpus: Iterable[int], there: range) -> bool:
    return any(gpu in there for gpu in gpus)
