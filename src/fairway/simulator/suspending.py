"""Suspended jobs of a simulated cluster: whose memory is on which GPU, in the memory of a node, or in a checkpoint.

A job that is suspended stays on its GPUs until another needs the room. Then those that ran longest ago leave, each by
the cheapest way that does: its memory is moved out, saved by the driver, or both, if the node has room for it;
otherwise the job is stopped by a checkpoint. A gang leaves as one. See docs/switching.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec
from fairway.models.suspend_table import OUT_WAYS, WAYS, Way, WayCosts
from fairway.models.suspension import Suspension
from fairway.models.switching import working_bytes


@dataclass
class WayUse:
    """How often jobs came back in some way, and the GPU seconds that leaving and coming back took."""

    times: int = 0
    gpu_s: float = 0.0


@dataclass
class _Job:
    """Where the memory of a job is. `size` is what it has on each of its GPUs; `way` is how it left them."""

    spec: JobSpec
    gpus: tuple[int, ...]
    size: float
    where: Literal["gpu", "host", "checkpoint"] = "gpu"
    way: Way = "in_place"
    moved_before: bool = False
    on_nodes: dict[int, float] = field(default_factory=dict)


class Suspends:
    """The switches of a cluster whose jobs are suspended, counted in `times`; jobs lost `gpu_s` by them.

    Calls come in the order of time. A job is known by its id.
    """

    def __init__(self, cluster: Cluster, switching: Suspension) -> None:
        self.switching = switching
        self.times = 0
        self.gpu_s = 0.0
        self.ways = {way: WayUse() for way in WAYS}
        self._node = cluster.node_of_gpu
        self._type = [cluster.node_type[node] for node in cluster.node_of_gpu]
        self._memory = [float(cluster.types[kind].memory_bytes) for kind in self._type]
        # The jobs that have memory on each GPU, those that ran longest ago first, and the one that it had last.
        self._on: list[dict[str, float]] = [{} for _ in self._node]
        self._last = [""] * len(self._node)
        self._host_bytes = [0.0] * len(cluster.nodes)
        self._jobs: dict[str, _Job] = {}

    def start_s(self, spec: JobSpec, gpus: Sequence[int], beside: Iterable[JobSpec] = ()) -> float:
        """Seconds until a job that starts on these GPUs computes: others leave first, then its own memory comes back.

        `beside` are the jobs that run on the same GPUs and go on.
        """
        chosen, known = tuple(gpus), self._jobs.get(spec.id)
        if known is not None and self._goes_on(known, chosen):
            return 0.0
        fresh = known is None and not any(self._last[gpu] for gpu in chosen)
        own_s = 0.0 if known is None else self._come_back(known, chosen)
        job = known or _Job(spec, chosen, 0.0)
        self._jobs[spec.id] = job
        job.gpus, job.size, job.where = chosen, self._size(spec, chosen), "gpu"
        room_s = self._make_room(job, {spec.id, *(mate.id for mate in beside)})
        for gpu in chosen:
            self._on[gpu][spec.id] = job.size
            self._last[gpu] = spec.id
        self.times += not fresh
        self.gpu_s += (room_s + own_s) * len(chosen)
        return room_s + own_s

    def next_s(self, gpu: int, spec: JobSpec, then: JobSpec | None = None) -> float:
        """Seconds of the switch to the next task on a GPU. Suspended jobs are gangs, so none run as tasks."""
        raise NotImplementedError

    def resume_s(self, spec: JobSpec) -> float:
        """What it would cost a job to go on where it was, if the memory of its GPUs were free."""
        job = self._jobs.get(spec.id)
        if job is None:
            return 0.0
        if job.where == "checkpoint":
            return self.switching.restart_s(spec)
        if job.where == "gpu":
            return 0.0 if all(self._last[gpu] == spec.id for gpu in job.gpus) else self._in_place_s()
        return self._back_s(job)

    def forget(self, gpu: int) -> None:
        """The node of a GPU has failed: what was there of any job is lost."""
        for job in list(self._jobs.values()):
            if gpu in job.gpus:
                self._checkpointed(job)
        self._on[gpu].clear()
        self._last[gpu] = ""

    def lose(self, spec: JobSpec) -> None:
        """The job goes back to a checkpoint: its memory is worth nothing."""
        if spec.id in self._jobs:
            self._checkpointed(self._jobs[spec.id])

    def ended(self, spec: JobSpec) -> None:
        """The job is done: its memory is free everywhere."""
        job = self._jobs.pop(spec.id, None)
        if job is not None:
            self._leave(job)

    def saved(self) -> frozenset[str]:
        """The jobs that were stopped by a checkpoint: the failure of a node costs them nothing."""
        return frozenset(name for name, job in self._jobs.items() if job.where == "checkpoint")

    def on_gpu(self, gpu: int) -> tuple[str, ...]:
        """The jobs whose memory is on a GPU, those that ran longest ago first. A rest of it does not count."""
        return tuple(name for name in self._on[gpu] if self._jobs[name].where == "gpu")

    def taken_bytes(self, gpu: int) -> float:
        """What all jobs have on a GPU."""
        return math.fsum(self._on[gpu].values())

    def host_bytes(self, node: int) -> float:
        """What suspended jobs take of a node's memory."""
        return self._host_bytes[node]

    def _goes_on(self, job: _Job, gpus: tuple[int, ...]) -> bool:
        """Whether nobody has had the GPUs of a job since, and it gets the same or some of them. Others become free."""
        if job.where != "gpu" or not set(gpus) <= set(job.gpus):
            return False
        if any(self._last[gpu] != job.spec.id for gpu in gpus):
            return False
        for gpu in set(job.gpus) - set(gpus):
            self._on[gpu].pop(job.spec.id, None)
        job.gpus = gpus
        return True

    def _come_back(self, job: _Job, gpus: tuple[int, ...]) -> float:
        """A job gets GPUs again: what its way back costs. It leaves the places where its memory was."""
        way, seconds = self._way_back(job, gpus)
        self._use(way, seconds, len(gpus)).times += 1
        self._leave(job)
        return seconds

    def _way_back(self, job: _Job, gpus: tuple[int, ...]) -> tuple[Way, float]:
        restart_s = self.switching.restart_s(job.spec)
        if job.where == "checkpoint":
            return "restart", restart_s
        if job.where == "gpu" and set(gpus) <= set(job.gpus):
            return "in_place", self._in_place_s()
        if job.where == "host" and set(gpus) == set(job.gpus):
            return job.way, self._back_s(job)
        driver = self.switching.costs("driver")
        # The driver can restore a process on other GPUs of the same type and machine. A memory pool cannot.
        alike = len(gpus) == len(job.gpus) and self._places(gpus) == self._places(job.gpus)
        if driver is not None and alike and job.way not in ("moved", "both"):
            out_s = driver.out_s(job.size, first=False) if job.where == "gpu" else 0.0
            moves_s = out_s + driver.back_s(job.size)
            if moves_s < restart_s:
                return "driver", moves_s
        return "restart", restart_s

    def _places(self, gpus: Sequence[int]) -> set[tuple[int, int]]:
        return {(self._node[gpu], self._type[gpu]) for gpu in gpus}

    def _make_room(self, job: _Job, staying: set[str]) -> float:
        """Suspended jobs leave the GPUs of a job until it fits, those that ran longest ago first. Returns how long that
        takes; the GPU that waits longest counts."""
        waits_s: dict[int, float] = {}
        for gpu in job.gpus:
            while self._is_short(gpu, job.size, staying):
                leaving = self._oldest(gpu, staying)
                gpus, seconds = leaving.gpus, self._move_out(leaving, self._room_for_rests(leaving, job, staying))
                for one in gpus:
                    waits_s[one] = waits_s.get(one, 0.0) + seconds
        return max((waits_s.get(gpu, 0.0) for gpu in job.gpus), default=0.0)

    def _oldest(self, gpu: int, staying: set[str]) -> _Job:
        """Who leaves a GPU next: the job that ran longest ago, before those of which only a rest is left there."""
        others = [self._jobs[one] for one in self._on[gpu] if one not in staying]
        return next((job for job in others if job.where == "gpu"), others[0])

    def _is_short(self, gpu: int, size: float, staying: set[str]) -> bool:
        """Whether some suspended job has to leave a GPU. On a GPU of unknown memory, all have to."""
        on = self._on[gpu]
        if all(one in staying for one in on):
            return False
        memory = self._memory[gpu]
        return not memory or self.taken_bytes(gpu) + size > memory

    def _room_for_rests(self, leaving: _Job, coming: _Job, staying: set[str]) -> float:
        """How much a job that makes room for another may leave behind on its GPUs, beside the rests of earlier ones."""
        rooms = []
        for gpu in set(leaving.gpus).intersection(coming.gpus):
            stays = (one in staying or self._jobs[one].where == "host" for one in self._on[gpu])
            taken = math.fsum(size for size, kept in zip(self._on[gpu].values(), stays, strict=True) if kept)
            rooms.append(self._memory[gpu] - coming.size - taken)
        return min(rooms)

    def _move_out(self, job: _Job, room_bytes: float) -> float:
        """The memory of a suspended job leaves its GPUs by the cheapest way. Returns how long that takes.

        A job that was moved out already may have left a rest on the GPUs that is needed now.
        """
        way, seconds = self._way_out(job, room_bytes) if job.where == "gpu" else self._way_of_rest(job)
        costs = self.switching.costs(way)
        if way == "restart" or costs is None:
            self._checkpointed(job)
            return 0.0
        self._use(way, seconds, len(job.gpus))
        self._leave(job)
        job.where, job.way, job.moved_before = "host", way, job.moved_before or way in ("moved", "both")
        for gpu in job.gpus:
            if costs.left_bytes:
                self._on[gpu][job.spec.id] = min(costs.left_bytes, job.size)
            node = self._node[gpu]
            job.on_nodes[node] = job.on_nodes.get(node, 0.0) + job.size
        for node, size in job.on_nodes.items():
            self._host_bytes[node] += size
        return seconds

    def _way_out(self, job: _Job, room_bytes: float) -> tuple[Way, float]:
        best: tuple[float, Way, float] = (self.switching.restart_s(job.spec), "restart", 0.0)
        if math.isfinite(job.size) and self._fits_host(job):
            for way in OUT_WAYS:
                costs = self.switching.costs(way)
                if costs is not None and costs.left_bytes <= max(room_bytes, 0.0):
                    out_s = self._out_s(job, way, costs)
                    best = min(best, (out_s + costs.back_s(job.size), way, out_s))
        return best[1], best[2]

    def _out_s(self, job: _Job, way: Way, costs: WayCosts) -> float:
        """Seconds until a job has left. Before memory is moved for the first time, host memory is pinned."""
        first, moved = not (self.switching.pinned or job.moved_before), self.switching.costs("moved")
        out_s = costs.out_s(job.size, first=first)
        if way == "both" and first and moved is not None:
            out_s += moved.out_s(job.size, first=True) - moved.out_s(job.size, first=False)
        return out_s

    def _way_of_rest(self, job: _Job) -> tuple[Way, float]:
        """How the rest of a job that was moved out leaves: by the driver, or the job is stopped."""
        both, moved = self.switching.costs("both"), self.switching.costs("moved")
        restart_s = self.switching.restart_s(job.spec)
        if both is None or moved is None or both.left_bytes or both.back_s(job.size) >= restart_s:
            return "restart", 0.0
        return "both", max(both.out_s(job.size, first=False) - moved.out_s(job.size, first=False), 0.0)

    def _fits_host(self, job: _Job) -> bool:
        needs: dict[int, float] = {}
        for gpu in job.gpus:
            needs[self._node[gpu]] = needs.get(self._node[gpu], 0.0) + job.size
        return all(self._host_bytes[node] + size <= self.switching.host_bytes for node, size in needs.items())

    def _checkpointed(self, job: _Job) -> None:
        """A job has nothing but its checkpoint."""
        self._leave(job)
        job.where, job.way = "checkpoint", "restart"

    def _leave(self, job: _Job) -> None:
        """The memory of a job is free, on GPUs and nodes."""
        for gpu in job.gpus:
            self._on[gpu].pop(job.spec.id, None)
        for node, size in job.on_nodes.items():
            self._host_bytes[node] = max(self._host_bytes[node] - size, 0.0)
        job.on_nodes = {}

    def _size(self, spec: JobSpec, gpus: Sequence[int]) -> float:
        """What a job needs on each of its GPUs: all of it if that is not known."""
        memory = min(self._memory[gpu] or math.inf for gpu in gpus)
        return min(working_bytes(spec), memory)

    def _back_s(self, job: _Job) -> float:
        costs = self.switching.costs(job.way)
        return self.switching.restart_s(job.spec) if costs is None else costs.back_s(job.size)

    def _in_place_s(self) -> float:
        costs = self.switching.costs("in_place")
        return 0.0 if costs is None else costs.back_s(0.0)

    def _use(self, way: Way, seconds: float, gpus: int) -> WayUse:
        use = self.ways[way]
        use.gpu_s += seconds * gpus
        return use
