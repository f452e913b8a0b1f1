"""Jobs whose state is in the memory of their GPUs: they can go on only there (their home), or from the beginning.

These are the jobs that are suspended in place, and those that would be, as long as their processes live. Policies do
not know about homes. Their decisions are corrected here: no such job is placed elsewhere, alone or as a guest. If
another job keeps computing on a home, the job waits, and its grant is free for other jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.occupancy import Occupancy
from fairway.core.plan import Placer
from fairway.core.policy import Layer
from fairway.core.snapshot import Snapshot

Homes = Mapping[int, tuple[int, ...]]
"""The GPUs that hold a job's state, by row."""
Shown = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Gives GPUs the numbers by which people know them."""
MOST_ASKS = 32
"""How often a policy is asked at one instant, each time without the jobs that cannot have what it gives them. It is a
number and not a time, so that the same snapshot gives the same decision on every machine."""


def by_row(snapshot: Snapshot, homes: Mapping[int, tuple[int, ...]]) -> Homes:
    """The homes by row, from the homes by job."""
    if not homes:
        return {}
    return {row: homes[job] for row, job in enumerate(snapshot.jobs.tolist()) if job in homes}


def other_types(snapshot: Snapshot, homes: Homes) -> dict[int, set[int]]:
    """The GPU types that rows cannot be given because their homes are of another type."""
    kinds = set(range(len(snapshot.capacity)))
    return {row: kinds - {_kind(snapshot, home)} for row, home in homes.items()} if len(kinds) > 1 else {}


def as_it_is(gpus: tuple[int, ...]) -> tuple[int, ...]:
    """GPUs under the numbers by which people know them."""
    return gpus


def sent_home(
    snapshot: Snapshot, decision: Decision, homes: Homes, blocked: Mapping[int, str], shown: Shown = as_it_is
) -> tuple[Decision, dict[int, str]]:
    """The decision with grants of rows only on their homes, and the rows that cannot have their homes now, with why.

    `blocked` are the blocked GPUs, by number with the reason. `shown` gives GPUs the numbers for texts.
    """
    granted = {row: home for row, home in homes.items() if decision.gpus[row]}
    if not granted:
        return decision, {}
    placed, away = decision.placements.items(), dict[int, str]()
    decision = decision._replace(placements={row: gpus for row, gpus in placed if granted.get(row, gpus) == gpus})
    stays = _who_stays(snapshot, decision)
    for row, home in granted.items():
        host = decision.partners.get(row, -1)
        if host >= 0 and granted.get(host) != home and not _is_on(snapshot, decision, host, home):
            away[row] = f"its memory is on {_named(shown(home))}, and the job that it could share with is elsewhere"
        elif not snapshot.held[row] and host < 0 and blocked.keys() & home:
            away[row] = f"its memory is on {_named(shown(home))}, and {blocked[min(blocked.keys() & home)]}"
        elif not snapshot.held[row]:
            root = row if host < 0 else host
            others = {other for gpu in home for other in stays.get(gpu, ())}
            taken = {other for other in others if decision.partners.get(other, other) != root}
            if taken:
                other = snapshot.job_id(int(snapshot.jobs[min(taken)]))
                away[row] = f"its memory is on {_named(shown(home))}, where job {other} runs"
    return decision.without(away) if away else decision, away


def _who_stays(snapshot: Snapshot, decision: Decision) -> dict[int, list[int]]:
    """By GPU, the rows that go on computing there."""
    stays: dict[int, list[int]] = {}
    for row in snapshot.running_rows.tolist():
        held = snapshot.gpus_held(row)
        if decision.gpus[row] == len(held) and decision.placements.get(row, held) == held:
            for gpu in held:
                stays.setdefault(gpu, []).append(row)
    return stays


def _is_on(snapshot: Snapshot, decision: Decision, host: int, home: tuple[int, ...]) -> bool:
    return set(decision.placements.get(host) or snapshot.gpus_held(host)) == set(home)


def _kind(snapshot: Snapshot, home: tuple[int, ...]) -> int:
    return snapshot.cluster.node_type[snapshot.cluster.node_of_gpu[home[0]]]


def _named(home: tuple[int, ...]) -> str:
    return f"GPU {home[0]}" if len(home) == 1 else f"GPUs {', '.join(map(str, home))}"


@dataclass(frozen=True)
class Homeward(Layer):
    """A policy that is asked again without the jobs whose homes are taken. `homes` are by job number.

    `blocked` and `shown` are as for `sent_home`.
    """

    homes: Mapping[int, tuple[int, ...]]
    blocked: Mapping[int, str] = field(default_factory=dict)
    shown: Shown = as_it_is

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision, with grants of jobs that have homes only there."""
        homes, shut = by_row(snapshot, self.homes), dict[int, str]()
        if not homes:
            return self.inner.decide(snapshot)
        for _ in range(MOST_ASKS):
            decision, away = sent_home(snapshot, self._asked(snapshot, shut), homes, self.blocked, self.shown)
            again = away.keys() - shut.keys()
            shut |= away
            if not again:
                break
        return decision.without((), texts=shut) if shut else decision

    def _asked(self, snapshot: Snapshot, shut: Mapping[int, str]) -> Decision:
        """The policy's decision about all rows but these, unless they run."""
        held = snapshot.held.tolist()
        rows: Ints = np.array([row for row in range(len(snapshot)) if held[row] or row not in shut], dtype=np.int64)
        if len(rows) == len(snapshot):
            return self.inner.decide(snapshot)
        decision = self.inner.decide(snapshot.part(rows))
        return Decision.composed([(rows, decision)], len(snapshot)).remembering(decision.memory)


class AtHome:
    """Any placement, except that jobs suspended on real GPUs resume where they are, or wait.

    `home(job)` gives the GPUs of such a job. It is empty for jobs that can go anywhere. `blocked` gives the
    blocked GPUs, by number with the reason.
    """

    def __init__(
        self, placer: Placer, home: Callable[[int], tuple[int, ...]], blocked: Callable[[], Mapping[int, str]]
    ) -> None:
        self.placer = placer
        self._home = home
        self._blocked = blocked
        self.name = placer.name
        self.located = placer.located

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """The placement for a row."""
        home, blocked = self._home(int(snapshot.jobs[row])), self._blocked()
        placer = Fixed(home, snapshot.cluster) if home else self.placer.suited(snapshot, row)
        return Around(placer, tuple(blocked)) if blocked else placer

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """When a row that found no place may find one."""
        return self.placer.retry_s(snapshot, row)

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Free GPUs for a gang."""
        return self.placer.place(occupancy, gpus, gpu_type)


class Around:
    """Any placement, but without blocked GPUs."""

    def __init__(self, placer: Placer, blocked: tuple[int, ...]) -> None:
        self.placer = placer
        self.blocked = blocked
        self.name = placer.name
        self.located = placer.located

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """The placement for a row."""
        return Around(self.placer.suited(snapshot, row), self.blocked)

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """When a row that found no place may find one."""
        return self.placer.retry_s(snapshot, row)

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Free GPUs for a gang that are not blocked."""
        scratch = occupancy.copy()
        for gpu in self.blocked:
            if not scratch.tenants(gpu) and scratch.node_of_gpu[gpu] not in scratch.down:
                scratch.take((gpu,))
        if scratch.free_by_type[gpu_type] < gpus:
            return None
        return self.placer.place(scratch, gpus, gpu_type)


class Fixed:
    """One place and no other."""

    name = "fixed"
    located = True

    def __init__(self, gpus: tuple[int, ...], cluster: Cluster) -> None:
        self.gpus = gpus
        self.gpu_type = cluster.node_type[cluster.node_of_gpu[gpus[0]]]

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """Itself."""
        return self

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """The job that is there may leave at any time, and that is an event."""
        return float("inf")

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """The place, if it is free and has the wanted size and type."""
        fits = len(self.gpus) == gpus and self.gpu_type == gpu_type
        return self.gpus if fits and not any(occupancy.tenants(gpu) for gpu in self.gpus) else None
