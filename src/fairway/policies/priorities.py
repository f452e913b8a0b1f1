"""Priorities around any policy: jobs of a higher priority are served first, and take GPUs from jobs of a lower one.

Jobs of one priority are a class. The policy is asked about one class after the other, from the highest down, each on
the GPUs that the classes above leave; so within a class it decides as usual. A job that may not be stopped (because it
has just started, or is never preempted) keeps its GPUs whatever its priority, and the jobs above do without them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, reason_text
from fairway.core.holders import named
from fairway.core.policy import Layer, Policy
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts, over
from fairway.policies.priority_booking import Served

_MEMORY = "by_priority"
"""The policy's memory of each class, if there are several; otherwise its memory is as it would be without the layer."""
_MORE_THAN_THERE_ARE = 2**62
"""Stands for the GPUs that a job needs of a type that it cannot use."""


def by_priority(policy: Policy) -> Policy:
    """The policy, asked class by class; the policy itself if it says (`ranks_priorities`) that it reads priorities."""
    if getattr(policy, "ranks_priorities", False) or isinstance(policy, ByPriority):
        return policy
    return ByPriority(policy)


@dataclass(frozen=True)
class ByPriority(Layer):
    """A policy that is asked about jobs of one priority at a time.

    Knows: what the inner policy knows, and priorities. While all jobs have the same priority, the layer changes
    nothing. Jobs that share GPUs belong together: the highest priority among them counts for all.
    """

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide one class after the other, from the highest priority down."""
        rank = snapshot.priority
        if len(rank) and (rank != rank[0]).any():
            groups = _Groups(snapshot)
            rank = groups.rank
            if (rank != rank[0]).any():
                return self._in_turn(snapshot, groups)
        if len(rank) and snapshot.memory.keys() == {_MEMORY}:
            snapshot = snapshot.part(memory=_recalled(snapshot.memory, int(rank[0])))
        return self.inner.decide(snapshot)

    def _in_turn(self, snapshot: Snapshot, groups: _Groups) -> Decision:
        served, classes = Served(snapshot, groups.head, groups.rank, groups.fixed), _Classes(snapshot, groups)
        parts, memory, room = list[_Part](), _remembered(snapshot, classes), snapshot.capacity
        # Memory of all jobs together is divided when each class is first asked about.
        divided = not snapshot.memory or snapshot.memory.keys() == {_MEMORY}
        at, waiting = 0, len(classes)
        while (turn := classes.next_of_use(at, room, spared=divided)) < len(classes):
            one, left = classes[turn], classes.left(turn, room)
            decision = None
            if left.any():
                decision = self._serve(snapshot, served, one, left, groups.fixed_below(one.rank), parts)
                memory[str(one.rank)] = decision.memory
                room = snapshot.capacity - served.granted
            else:
                served.stop(one.rows)
                memory[str(one.rank)] = _recalled(snapshot.memory, one.rank)
            if turn > at or decision is None or not decision.gpus.all():
                waiting = min(waiting, at)
            at = turn + 1
        waiting = min(waiting, at)
        whole = _composed(snapshot, groups, parts, served).remembering({_MEMORY: memory})
        if waiting < len(classes):
            # The jobs below the first class that waits include those below every other. Wake when one may be stopped.
            kept = groups.fixed_below(classes[waiting].rank)
            whole = whole.waking(float(groups.until_s[kept].min(initial=math.inf)))
        return whole

    def _serve(
        self, snapshot: Snapshot, served: Served, one: _Class, left: Ints, kept: Ints, parts: list[_Part]
    ) -> Decision:
        """Ask about one class, and book what it gets. `kept` are rows of lower classes that may not be stopped."""
        view = snapshot.part(
            one.rows,
            capacity=left,
            withheld=served.withheld(kept),
            memory=_recalled(snapshot.memory, one.rank),
            stopped=served.stopped(one.rows, left),
        )
        decision = self.inner.decide(view)
        check(view, decision)
        decision = served.serve(one.rows, view, decision)
        parts.append(_Part(one.rank, one.rows, view, decision))
        return decision


def _remembered(snapshot: Snapshot, classes: _Classes) -> dict[str, Any]:
    """The memory of each class that still has jobs."""
    known = snapshot.memory.get(_MEMORY, {})
    return {rank: known[rank] for rank in map(str, classes.ranks.tolist()) if rank in known} if known else {}


def _recalled(memory: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """The memory of a class. Memory from when all jobs were one class holds for each class."""
    if memory.keys() != {_MEMORY}:
        return memory
    recalled: Mapping[str, Any] = memory[_MEMORY].get(str(rank), {})
    return recalled


class _Class(NamedTuple):
    """The jobs of one priority, as rows in rising order."""

    rank: int
    rows: Ints


class _Part(NamedTuple):
    """What the policy saw of a class, and what it decided."""

    rank: int
    rows: Ints
    view: Snapshot
    decision: Decision


class _Groups:
    """Jobs that share GPUs: the row of each job's host (or its own), the priority that counts, which cannot be moved.

    `until_s` says until when they cannot be moved, at the rows of hosts.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        count = len(snapshot)
        self.head: Ints = np.arange(count)
        self.rank: Ints = snapshot.priority.copy()
        self.fixed: Bools = np.zeros(count, dtype=np.bool_)
        self.until_s: Floats = snapshot.protected_until_s
        if snapshot.guarded:
            self.fixed[snapshot.protected_rows] = True
        guests = (snapshot.host >= 0).nonzero()[0]
        if len(guests):
            hosts = np.searchsorted(snapshot.jobs, snapshot.host[guests])
            self.head[guests] = hosts
            np.maximum.at(self.rank, hosts, self.rank[guests])
            np.logical_or.at(self.fixed, hosts, self.fixed[guests])
            self.rank[guests], self.fixed[guests] = self.rank[hosts], self.fixed[hosts]
            self.until_s = self.until_s.copy()
            np.maximum.at(self.until_s, hosts, self.until_s[guests])
        self.fixed_heads: Ints = (self.fixed & (self.head == np.arange(count))).nonzero()[0]

    def fixed_below(self, rank: int) -> Ints:
        """Rows of lower priority whose GPUs cannot be taken."""
        return self.fixed_heads[self.rank[self.fixed_heads] < rank]


class _Classes:
    """The classes from the highest priority down, and which of them could use the GPUs that are left."""

    def __init__(self, snapshot: Snapshot, groups: _Groups) -> None:
        order = np.argsort(-groups.rank, kind="stable")
        ranks = groups.rank[order]
        starts = np.concatenate([[0], (ranks[1:] != ranks[:-1]).nonzero()[0] + 1])
        self.ranks: Ints = ranks[starts]
        self._rows = order
        self._starts = [*starts.tolist(), len(order)]
        needs = np.where(snapshot.speeds > 0, snapshot.gpus_min, _MORE_THAN_THERE_ARE)
        self._least: Ints = np.minimum.reduceat(needs[:, order], starts, axis=1)
        self._runs: Bools = np.logical_or.reduceat(snapshot.running[order], starts)
        # By GPU type and class: what jobs in lower classes hold that may not be stopped.
        heads = groups.fixed_heads
        below = np.zeros((len(snapshot.capacity), len(starts) + 1), dtype=np.int64)
        np.add.at(
            below, (snapshot.gpu_type[heads], np.searchsorted(-self.ranks, -groups.rank[heads])), snapshot.held[heads]
        )
        self._below: Ints = below[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, at: int) -> _Class:
        return _Class(int(self.ranks[at]), self._rows[self._starts[at] : self._starts[at + 1]])

    def left(self, at: int, room: Ints) -> Ints:
        """The GPUs that a class may have, by type, where the classes above it leave `room`."""
        left: Ints = np.maximum(room - self._below[:, at], 0)
        return left

    def next_of_use(self, at: int, room: Ints, *, spared: bool) -> int:
        """The first class from here on that runs or could start with what is left; the number of classes if none.

        The policy need not be asked about the other classes, of which there may be thousands: they get nothing.
        `spared`: take jobs that may not be stopped into account.
        """
        left = room[:, None] - self._below[:, at:] if spared else room[:, None]
        of_use = self._runs[at:] | (self._least[:, at:] <= left).any(axis=0)
        return at + int(of_use.argmax()) if of_use.any() else len(self)


def _composed(snapshot: Snapshot, groups: _Groups, parts: Sequence[_Part], served: Served) -> Decision:
    """The decisions about the classes as one about all rows. Classes that were not asked about get nothing."""
    ordered = [(part.rows, part.decision._replace(order=_placed_first(part.decision))) for part in parts]
    whole = Decision.composed(ordered, len(snapshot), Reason.NO_FREE_GPUS)
    return whole._replace(
        gpu_types=served.kinds if len(snapshot.capacity) > 1 else None,
        placements=served.placements(whole),
        texts=over(_texts(snapshot, groups, parts, whole.gpus, served.kinds), whole.texts),
    )


def _placed_first(decision: Decision) -> list[int]:
    """All rows that get GPUs, in the order of placement: the policy's order, then the largest first."""
    granted = decision.gpus.nonzero()[0]
    others = granted[np.argsort(-decision.gpus[granted], kind="stable")].tolist()
    return list(dict.fromkeys([*decision.order, *others]))


def _texts(snapshot: Snapshot, groups: _Groups, parts: Sequence[_Part], gpus: Ints, kinds: Ints) -> Texts:
    """Why each row waits: what the policy says, and which jobs of other priorities have the GPUs."""
    part_of, rank = {part.rank: part for part in parts}, groups.rank

    def own(row: int) -> str:
        part = part_of.get(int(rank[row]))
        if part is None:
            usable = snapshot.speeds[:, row] > 0
            free = int(snapshot.capacity[usable].sum()) - int(gpus[usable[kinds]].sum())
            return reason_text(Reason.NO_FREE_GPUS, int(snapshot.gpus[row]), free, "")
        return part.decision.reason(part.view, int(np.searchsorted(part.rows, row)))

    @cache
    def others(own_rank: int, usable: tuple[bool, ...]) -> list[str]:
        """The same for all rows of a priority that can use the same types."""
        counted = (groups.head == np.arange(len(rank))) & (gpus > 0) & np.array(usable)[kinds]
        above: Ints = (counted & (rank > own_rank)).nonzero()[0]
        below: Ints = (counted & (rank < own_rank) & groups.fixed).nonzero()[0]
        texts = []
        for rows, priority in ((above, "a higher priority"), (below, "a lower priority, but cannot be stopped now")):
            if len(rows):
                texts.append(f"{named(snapshot, rows, gpus)} {'has' if len(rows) == 1 else 'have'} {priority}")
        return texts

    def say(row: int) -> str:
        return "; ".join([own(row), *others(int(rank[row]), tuple((snapshot.speeds[:, row] > 0).tolist()))])

    return Texts((gpus == 0).nonzero()[0], say)
