"""The nodes of a live cluster: which of them do not answer, are lost or drained, and what that means for jobs.

On a node that does not answer nothing is started; what runs there goes on. A lost node is given up: its jobs leave it
at once, and run elsewhere from their last checkpoints. That is no failure of theirs. On a drained node nothing is
started either, because an operator wants it so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairway.core.cluster import Cluster
from fairway.core.event import Event, JobEvicted, NodeLost, NodeRestored, Woken
from fairway.runtime.jobs import life
from fairway.runtime.jobs.estimates import grown_speeds, speeds_of
from fairway.runtime.jobs.life import NODE_LOST, ClusterGrew, Converge, NodesChanged, Settle, Stop
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
        jobs.interpret(NodesChanged, self.changed)
        jobs.interpret(ClusterGrew, self.grew)

    @property
    def cluster(self) -> Cluster:
        """The nodes, by number."""
        return self._jobs.state.cluster

    def changed(self, one: NodesChanged) -> list[Event]:
        """Nodes are up, do not answer, or are lost. The site may say so again; that changes nothing."""
        jobs, now_s, down = self._jobs, one.time_s, self._jobs.state.occupancy.down
        before = {node: change.status for node, change in self.away.items()}
        away = {**self.away, **{change.node: change for change in one.changes}}
        self.away = {node: change for node, change in away.items() if change.status != "up"}
        jobs.blocked.set(self._blocked(), AWAY)
        events: list[Event] = []
        lost = [change.node for change in one.changes if change.status == "lost"]
        events += [NodeLost(now_s, node) for node in lost if node not in down]
        if lost:
            on = {gpu: self.cluster.nodes[node].name for node in lost for gpu in self._gpus(node)}
            events += [event for record in jobs.store for event in self._lost(record, on, now_s)]
        if any(change.status == "unreachable" for change in one.changes):
            events += jobs.off_blocked(now_s)
        events += [NodeRestored(now_s, node) for node, status, _ in one.changes if status == "up" and node in down]
        if not events and all(before.get(node, "up") == status for node, status, _ in one.changes):
            return []
        jobs.instructions.append(Settle())
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

    def _lost(self, record: JobRecord, on: Mapping[int, str], now_s: float) -> list[Event]:
        """Take a job off lost nodes, if it is there or was to be. `on` has the names of the nodes by GPU."""
        jobs = self._jobs
        attempt, held = record.open_attempt, jobs.state.held_gpus.get(record.number, ())
        booked = [gpu for gpu in held if gpu in on]
        broken = (
            [gpu for gpu in attempt.gpus if gpu in on] if attempt is not None and attempt.cause != NODE_LOST else []
        )
        if record.state.ended or not (booked or broken):
            return []
        why = f"its node {on[(broken or booked)[0]]} is lost"
        jobs.store.touch(record)
        jobs.store.note(record, jobs.date_s(now_s), "lost", f"taken off its GPUs: {why}")
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
