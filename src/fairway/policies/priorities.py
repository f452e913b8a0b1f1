"""Priorities around any policy: jobs of a higher one are served first, and take GPUs from those of a lower one.

Jobs of one priority are a class. The policy is asked about one class after the other, from the highest down, each on
the GPUs that those above leave; so within a class it decides as ever. Whoever may not be stopped (a job that was
started a moment ago, or that is never preempted) keeps its GPUs whatever its priority, and those above do without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.check import check
from fairway.core.decision import Decision, Reason, nothing_granted, reason_text
from fairway.core.policy import Layer, Policy
from fairway.core.snapshot import Snapshot
from fairway.policies.served import Served

_MEMORY = "by_priority"
"""What the policy remembers of each class, where there are several; else its memory is as it would be by itself."""


def by_priority(policy: Policy) -> Policy:
    """The policy, class by class; itself if it says (`ranks_priorities`) that it looks at priorities already."""
    if getattr(policy, "ranks_priorities", False) or isinstance(policy, ByPriority):
        return policy
    return ByPriority(policy)


@dataclass(frozen=True)
class ByPriority(Layer):
    """A policy that is asked about jobs of one priority at a time.

    Knows: what the inner policy knows, and priorities. While all jobs have the same one it is as if the layer were not
    there. Jobs that share GPUs belong together: the highest priority among them counts for all.
    """

    def decide(self, snapshot: Snapshot) -> Decision:
        """One class after the other, from the highest priority down."""
        rank = snapshot.priority
        if len(rank) and (rank != rank[0]).any():
            groups = _Groups(snapshot)
            rank = groups.rank
            if (rank != rank[0]).any():
                return self._in_turn(snapshot, groups)
        if len(rank) and snapshot.memory.keys() == {_MEMORY}:
            snapshot = snapshot.recalling(_recalled(snapshot.memory, int(rank[0])))
        return self.inner.decide(snapshot)

    def _in_turn(self, snapshot: Snapshot, groups: _Groups) -> Decision:
        served = Served(snapshot, groups.head, groups.rank, groups.fixed)
        parts: list[_Part] = []
        most, wake_s = int(snapshot.capacity.max()), math.inf
        for rank, rows, least, runs in groups.classes():
            kept = groups.fixed_below(rank)
            # Nobody here could start, so the policy need not be asked: there may be thousands of such classes.
            if runs or least <= most:
                decision = self._serve(snapshot, served, rank, rows, kept, parts)
                most = int((snapshot.capacity - served.granted).max())
                waits = not decision.gpus.all()
            else:
                waits = True
            if waits and len(kept):
                wake_s = min(wake_s, float(groups.until_s[kept].min()))
        whole = _composed(snapshot, groups, parts, served)
        whole.wake_s = min(whole.wake_s, wake_s)
        return whole

    def _serve(
        self, snapshot: Snapshot, served: Served, rank: int, rows: Ints, kept: Ints, parts: list[_Part]
    ) -> Decision:
        """Ask about one class, and book what it gets; `kept` are those below it who may not be stopped."""
        left: Ints = np.maximum(snapshot.capacity - served.granted - served.counted(kept), 0)
        view = snapshot.part(
            rows,
            capacity=left,
            withheld=served.withheld(kept),
            memory=_recalled(snapshot.memory, rank),
            stopped=served.stopped(rows, left),
        )
        decision = self._asked(view)
        served.serve(rows, view, decision)
        parts.append(_Part(rank, rows, view, decision))
        return decision

    def _asked(self, view: Snapshot) -> Decision:
        if not view.capacity.any():
            decision = nothing_granted(len(view), Reason.NO_FREE_GPUS)
            decision.memory = view.memory
        else:
            decision = self.inner.decide(view)
            check(view, decision)
        return decision


def _recalled(memory: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """What is remembered of a class. What was remembered of all jobs, when all were one class, holds for each."""
    if memory.keys() != {_MEMORY}:
        return memory
    recalled: Mapping[str, Any] = memory[_MEMORY].get(str(rank), {})
    return recalled


class _Part(NamedTuple):
    """What the policy saw of a class, and what it decided."""

    rank: int
    rows: Ints
    view: Snapshot
    decision: Decision


class _Groups:
    """Jobs that share GPUs: the row of each one's host (or its own), what priority counts, and who cannot be moved.

    `until_s` says until when, in the rows of hosts.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        count = len(snapshot)
        self._gpus_min, self._running = snapshot.gpus_min, snapshot.running
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
        self._fixed_heads: Ints = (self.fixed & (self.head == np.arange(count))).nonzero()[0]

    def classes(self) -> Iterator[tuple[int, Ints, int, bool]]:
        """The priorities from the highest down: rows in their order, the fewest GPUs of use, whether any row runs."""
        order = np.argsort(-self.rank, kind="stable")
        ranks = self.rank[order]
        starts = np.concatenate([[0], (ranks[1:] != ranks[:-1]).nonzero()[0] + 1])
        least = np.minimum.reduceat(self._gpus_min[order], starts).tolist()
        runs = np.logical_or.reduceat(self._running[order], starts).tolist()
        ends = [*starts[1:].tolist(), len(order)]
        for at, start in enumerate(starts.tolist()):
            yield int(ranks[start]), order[start : ends[at]], least[at], runs[at]

    def fixed_below(self, rank: int) -> Ints:
        """Rows of lower priority whose GPUs cannot be taken."""
        if not len(self._fixed_heads):
            return self._fixed_heads
        return self._fixed_heads[self.rank[self._fixed_heads] < rank]


def _composed(snapshot: Snapshot, groups: _Groups, parts: Sequence[_Part], served: Served) -> Decision:
    """The decisions about the classes as one about all rows; those who were not asked about get nothing."""
    whole = nothing_granted(len(snapshot), Reason.NO_FREE_GPUS)
    known = snapshot.memory.get(_MEMORY, {})
    memory = {rank: known[rank] for rank in map(str, np.unique(groups.rank).tolist()) if rank in known} if known else {}
    partners, throttles, order = dict[int, int](), dict[int, float](), list[int]()
    for rank, rows, _, decision in parts:
        at = rows.tolist()
        whole.gpus[rows], whole.reasons[rows] = decision.gpus, decision.reasons
        whole.ahead = decision.ahead if whole.ahead < 0 else whole.ahead
        whole.wake_s = min(whole.wake_s, decision.wake_s)
        whole.warm |= decision.warm
        partners |= {at[guest]: at[host] for guest, host in decision.partners.items()}
        throttles |= {at[row]: share for row, share in decision.throttles.items()}
        granted = rows[decision.gpus > 0]
        others = granted[np.argsort(-whole.gpus[granted], kind="stable")].tolist()
        order += dict.fromkeys([*(at[row] for row in decision.order), *others])
        memory[str(rank)] = decision.memory
    whole.partners, whole.throttles, whole.order = partners, throttles, order
    whole.gpu_types = served.kinds if len(snapshot.capacity) > 1 else None
    whole.placements = served.placements(whole)
    whole.memory = {_MEMORY: memory}
    whole.texts = _Texts(snapshot, groups, parts, whole, served.kinds)
    return whole


class _Texts(Mapping[int, str]):
    """Why each row waits, put into words only when somebody asks."""

    def __init__(
        self, snapshot: Snapshot, groups: _Groups, parts: Sequence[_Part], whole: Decision, kinds: Ints
    ) -> None:
        self._snapshot = snapshot
        self._groups = groups
        self._part = {part.rank: part for part in parts}
        self._whole = whole
        self._kinds = kinds
        self._free = max(int(snapshot.capacity.sum()) - int(whole.gpus.sum()), 0)
        self._waits: Ints = (whole.gpus == 0).nonzero()[0]

    def __getitem__(self, row: int) -> str:
        if row not in self._waits:  # nor has whoever finds no place after the decision: that is a newer reason
            raise KeyError(row)
        rank, usable = self._groups.rank, self._snapshot.speeds[:, row] > 0
        counted = (self._groups.head == np.arange(len(rank))) & (self._whole.gpus > 0) & usable[self._kinds]
        above = int(self._whole.gpus[counted & (rank > rank[row])].sum())
        below = int(self._whole.gpus[counted & (rank < rank[row]) & self._groups.fixed].sum())
        texts = []
        if above:
            texts.append(f"{_gpus(above)} taken by jobs of higher priority")
        if below:
            texts.append(f"{_gpus(below)} kept by jobs of lower priority that may not be stopped now")
        return "; ".join([*texts, self._own(row)])

    def _own(self, row: int) -> str:
        part = self._part.get(int(self._groups.rank[row]))
        if part is None:
            return reason_text(Reason.NO_FREE_GPUS, int(self._snapshot.gpus[row]), self._free, "")
        return part.decision.reason(part.view, int(np.searchsorted(part.rows, row)))

    def __iter__(self) -> Iterator[int]:
        return iter(self._waits.tolist())

    def __len__(self) -> int:
        return len(self._waits)


def _gpus(count: int) -> str:
    return "1 GPU is" if count == 1 else f"{count} GPUs are"
