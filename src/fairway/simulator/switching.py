"""Switches of simulated GPUs from job to job: what each one costs, and which models stay in a GPU's memory.

A GPU *switches* when it gets another job than it had last. Under `resident` it keeps the state of the jobs that it had
before, the latest ones first, as long as they fit beside the job that runs. See docs/switching.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec
from fairway.models.suspension import Suspension
from fairway.models.switching import Switching, working_bytes
from fairway.simulator.suspending import Suspends

_LEFT = "\0"
"""Stands for a job whose state on a GPU is worth nothing any more. It is no job's id."""


class _Terms(NamedTuple):
    """A job's costs of a switch, and its memory on each GPU while it is resident and while it runs."""

    cost_s: float
    hit_s: float
    state_bytes: float
    working_bytes: float


class _Gpu:
    """The job that a GPU had last (and may still have), and those that are resident beside it, oldest first."""

    __slots__ = ("held_bytes", "last", "memory_bytes", "residents")

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.last = ""
        self.residents: dict[str, float] = {}
        self.held_bytes = 0.0


def switches_of(cluster: Cluster, switching: Switching | None) -> Switches | Suspends | None:
    """What keeps account of switches, if these are simulated."""
    if isinstance(switching, Suspension):
        return Suspends(cluster, switching)
    return None if switching is None else Switches(cluster, switching)


class Switches:
    """The switches of a cluster, counted in `times`; jobs lost `gpu_s` by them.

    Calls come in the order of time. A job is known by its id.
    """

    def __init__(self, cluster: Cluster, switching: Switching) -> None:
        self.switching = switching
        self.times = 0
        self.gpu_s = 0.0
        kinds = [cluster.types[kind].memory_bytes for kind in cluster.node_type]
        self._gpus = [_Gpu(kinds[node]) for node in cluster.node_of_gpu]
        self._terms: dict[str, _Terms] = {}
        # The GPUs that keep a job's state beside the job that they have, and those on which it started last.
        self._where: dict[str, set[int]] = {}
        self._gang: dict[str, Sequence[int]] = {}
        self._keeps = switching.method == "resident"
        self._ends_processes = switching.method == "restart"

    def start_s(self, spec: JobSpec, gpus: Sequence[int], beside: Iterable[JobSpec] = ()) -> float:
        """Seconds until a job that starts on these GPUs computes: the slowest GPU counts.

        `beside` are the jobs that run on the same GPUs and go on. A job whose GPUs had no other job since it left goes
        on at once, except under `restart`, which ended its process. What it left on other GPUs is out of date from now
        on.
        """
        begun, terms = spec.id in self._terms, self._terms_of(spec)
        if begun and self._gang.get(spec.id) != gpus:
            self._leave(spec.id, frozenset(gpus))
        self._gang[spec.id] = gpus
        mates = tuple(beside)
        taken_bytes = sum(working_bytes(mate) for mate in mates)
        staying = frozenset(mate.id for mate in mates)
        longest_s, switched = 0.0, False
        for gpu in gpus:
            if self._gpus[gpu].last == spec.id:
                if not self._ends_processes:
                    continue
            elif not self._gpus[gpu].last and not begun:
                self._gpus[gpu].last = spec.id
                continue
            switched = True
            longest_s = max(longest_s, self._enter(gpu, spec.id, terms, taken_bytes, staying))
        self.times += switched
        self.gpu_s += longest_s * len(gpus)
        return longest_s

    def next_s(self, gpu: int, spec: JobSpec, then: JobSpec | None = None) -> float:
        """Seconds of the switch to the next task on a GPU. `then` is the job after it, if that is known.

        The state of `then`, if it is resident, is the last that has to go. Tasks of one job follow each other without a
        switch.
        """
        at = self._gpus[gpu]
        if at.last == spec.id:
            return 0.0
        begun, terms = spec.id in self._terms, self._terms_of(spec)
        if not at.last and not begun:
            at.last = spec.id
            return 0.0
        cost_s = self._enter(gpu, spec.id, terms, pinned="" if then is None else then.id)
        self.times += 1
        self.gpu_s += cost_s
        return cost_s

    def forget(self, gpu: int) -> None:
        """The GPU has lost what was in its memory."""
        at = self._gpus[gpu]
        for job in at.residents:
            self._where[job].discard(gpu)
        at.residents.clear()
        at.held_bytes = 0.0
        at.last = ""

    def lose(self, spec: JobSpec) -> None:
        """The job goes back to a checkpoint: its state on all GPUs is worth nothing."""
        self._leave(spec.id, frozenset())

    def ended(self, spec: JobSpec) -> None:
        """The job is done: its state leaves all GPUs."""
        self._leave(spec.id, frozenset())
        for known in (self._terms, self._where, self._gang):
            known.pop(spec.id, None)

    def resident(self, gpu: int) -> tuple[str, ...]:
        """The jobs whose state a GPU keeps beside the one that it had last, oldest first."""
        return tuple(self._gpus[gpu].residents)

    def _terms_of(self, spec: JobSpec) -> _Terms:
        terms = self._terms.get(spec.id)
        if terms is None:
            how = self.switching
            terms = _Terms(how.cost_s(spec), how.hit_s(spec), how.state_bytes(spec), working_bytes(spec))
            self._terms[spec.id] = terms
        return terms

    def _leave(self, job: str, but: frozenset[int]) -> None:
        """A job's state leaves all GPUs but some."""
        for gpu in self._gang.get(job, ()):
            if gpu not in but and self._gpus[gpu].last == job:
                self._gpus[gpu].last = _LEFT
        for gpu in sorted(self._where.get(job, frozenset()) - but):
            self._drop(gpu, self._gpus[gpu], job)

    def _enter(
        self,
        gpu: int,
        job: str,
        terms: _Terms,
        taken_bytes: float = 0.0,
        staying: frozenset[str] = frozenset(),
        pinned: str = "",
    ) -> float:
        """A GPU gets another job. Returns what that costs."""
        at, last = self._gpus[gpu], self._gpus[gpu].last
        at.last = job
        if not self._keeps:
            return terms.cost_s
        hit = job in at.residents
        if hit:
            self._drop(gpu, at, job)
        if last and last not in staying:
            self._keep(gpu, at, last)
        room = at.memory_bytes - terms.working_bytes - taken_bytes
        while at.residents and at.held_bytes > room:
            oldest = iter(at.residents)
            first = next(oldest)
            self._drop(gpu, at, next(oldest, first) if first == pinned else first)
        return terms.hit_s if hit else terms.cost_s

    def _keep(self, gpu: int, at: _Gpu, job: str) -> None:
        """The job that leaves stays resident, unless it has ended or cannot fit."""
        terms = self._terms.get(job)
        if terms is not None and terms.state_bytes <= at.memory_bytes:
            at.residents[job] = terms.state_bytes
            at.held_bytes += terms.state_bytes
            self._where.setdefault(job, set()).add(gpu)

    def _drop(self, gpu: int, at: _Gpu, job: str) -> None:
        at.held_bytes -= at.residents.pop(job)
        self._where[job].discard(gpu)
