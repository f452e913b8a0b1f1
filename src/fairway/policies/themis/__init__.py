"""Themis (Mahajan et al., NSDI'20): GPUs are auctioned to the apps that are furthest behind their fair finish time.

GPUs are leased. When leases end, the GPUs are offered to the worst-off part of the apps. Each bids what each number of
GPUs would do to its finish-time ratio rho. A partial allocation decides, which makes honest bids the best ones. What
the payments leave over goes to the other apps, so nothing idles, and an app that keeps losing gets worse until it wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.policies.registry import register
from fairway.policies.themis.auction import offered_to, partial_allocation
from fairway.policies.themis.bids import BidMarket, Grant, market_of, tender_of
from fairway.policies.themis.gathering import gathered
from fairway.policies.themis.leftovers import enlarge, hand_out, outsiders
from fairway.policies.themis.rho import AppBy, apps_of, relative_speeds

_MOMENT_S = 1e-6
_SHORTEST_PART = 0.05


class Sale(NamedTuple):
    """The result of an auction: GPUs by row, concrete ones for rows that move closer together, and the part of a lease
    that rows keep whose apps paid with time."""

    grants: dict[int, Grant]
    placements: dict[int, tuple[int, ...]]
    parts: dict[int, float]


@register
@dataclass(frozen=True)
class Themis:
    """Auctions of leased GPUs among the apps that are furthest behind their finish-time fair share.

    Knows: true run times (an oracle, for rho), speeds by GPU type, gang sizes, owners. Preempts when leases end.

    The worst-off 1 - `fairness` of the apps bid. With `leases=aligned` all leases end at multiples of `lease_s`;
    otherwise each lasts that long. Having nothing counts as `floor` times the value of the smallest gang. A bidder that
    keeps a part c of what it won pays in whole gangs, or with `payment=time` by a lease that is shorter by that part.
    """

    fairness: float = 0.8
    lease_s: float = 1200.0
    app: AppBy = "job"
    leases: Literal["aligned", "own"] = "aligned"
    payment: Literal["gpus", "time"] = "gpus"
    floor: float = 0.1

    name: ClassVar[str] = "themis"
    knows: ClassVar[frozenset[str]] = frozenset({"duration"})
    heeds: ClassVar[frozenset[str]] = frozenset({"range"})
    round_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fairness <= 1:
            raise ValueError(f"fairness must be from 0 to 1, not {self.fairness:g}")
        if not (math.isfinite(self.lease_s) and self.lease_s >= 10):
            raise ValueError(f"lease_s must be at least 10, not {self.lease_s:g}")
        if not 0 < self.floor <= 1:
            raise ValueError(f"floor must be in (0, 1], not {self.floor:g}")

    def decide(self, snapshot: Snapshot) -> Decision:
        if not len(snapshot):
            return nothing_granted(0)
        relative = relative_speeds(snapshot)
        apps, memory = apps_of(snapshot, self.app, relative)
        ends_s = self._lease_ends(snapshot)
        keeps = snapshot.running & (ends_s > snapshot.now_s + _MOMENT_S)
        keeps[snapshot.protected_rows] = True
        # A job that has just restarted works at least as long as the restart took, however short leases are.
        keeps |= (
            snapshot.running & (snapshot.launches > 1) & (snapshot.idle_since_s + snapshot.restart_s > snapshot.now_s)
        )
        sale = Sale({}, {}, {})
        offer = _pooled(snapshot, keeps)
        if any(offer) and not keeps.all():
            market = market_of(snapshot, apps, relative, ~keeps, self.lease_s, self.floor)
            sale = self._auction(snapshot, market, offer, ~keeps)
        decision = _decision(snapshot, keeps, sale)
        ends_s = self._new_ends(snapshot, decision, keeps, ends_s, sale)
        if _may_change(snapshot, decision):
            decision = decision.waking(float(ends_s[decision.gpus > 0].min(initial=math.inf)))
        return decision.remembering(memory | {"jobs": snapshot.jobs.copy(), "ends_s": ends_s})

    def _auction(self, snapshot: Snapshot, market: BidMarket, offer: list[int], on_offer: Bools) -> Sale:
        """Offer, bid, allocate, and hand out what is left."""
        room = (snapshot.gpus_min <= np.array(offer)[:, None]) & (snapshot.speeds > 0)
        usable = np.unique(market.apps.of_row[on_offer & room.any(axis=0)])
        if not len(usable):
            return Sale({}, {}, {})
        bidders: list[int] = usable[offered_to(market.apps.rho[usable], self.fairness)].tolist()
        tenders = [tender_of(market, app, offer) for app in bidders]
        outcome = partial_allocation([tender.bid for tender in tenders], offer)
        columns: Sequence[int] = outcome.columns if self.payment == "gpus" else outcome.won
        grants: dict[int, Grant] = {}
        parts: dict[int, float] = {}
        for tender, column, part in zip(tenders, columns, outcome.kept.tolist(), strict=True):
            for grant in tender.grants[column]:
                grants[grant.row] = grant
                parts[grant.row] = max(part, _SHORTEST_PART) if self.payment == "time" else 1.0
        free = list(offer)
        for grant in grants.values():
            free[grant.kind] -= grant.gpus
        if any(free):
            others = outsiders(snapshot, market, bidders, on_offer)
            hand_out(market, grants, free, others)
            hand_out(market, grants, free, bidders)
            enlarge(market, grants, free, [*others, *bidders])
        return Sale(grants, gathered(snapshot, market, ~on_offer, grants), parts)

    def _lease_ends(self, snapshot: Snapshot) -> Floats:
        """When the lease of each running row ends. For rows that were not seen before, it counts from their start."""
        return snapshot.recall("ends_s", self._full_lease_end_s(snapshot.since_s))

    def _full_lease_end_s(self, since_s: Floats) -> Floats:
        """The end of leases that begin at these instants."""
        if self.leases == "own":
            return np.asarray(since_s + self.lease_s)
        return np.asarray((np.floor((since_s + _MOMENT_S) / self.lease_s) + 1.0) * self.lease_s)

    def _new_ends(self, snapshot: Snapshot, decision: Decision, keeps: Bools, ends_s: Floats, sale: Sale) -> Floats:
        """Leases after this decision. Rows that keep their GPUs only because they are protected get a new one."""
        now_s = snapshot.now_s
        full_s = float(self._full_lease_end_s(np.array([now_s]))[0])
        begins = (decision.gpus > 0) & ~(keeps & (ends_s > now_s + _MOMENT_S))
        ends_s = np.where(decision.gpus > 0, np.where(begins, full_s, ends_s), 0.0)
        for row, part in sale.parts.items():
            ends_s[row] = min(full_s, now_s + part * self.lease_s)
        return ends_s


def _pooled(snapshot: Snapshot, keeps: Bools) -> list[int]:
    """GPUs on offer by type: free ones and those whose lease is over."""
    kinds = len(snapshot.capacity)
    taken = np.bincount(snapshot.gpu_type[keeps], snapshot.held[keeps], kinds)
    return [max(int(count), 0) for count in snapshot.capacity - taken]


def _decision(snapshot: Snapshot, keeps: Bools, sale: Sale) -> Decision:
    gpus = np.where(keeps, snapshot.held, 0)
    kinds = np.where(keeps, snapshot.gpu_type, -1)
    for row, grant in sale.grants.items():
        gpus[row], kinds[row] = grant.gpus, grant.kind
    waits = np.where(snapshot.launches > 0, int(Reason.NOT_ITS_TURN), int(Reason.OUTRANKED))
    reasons = np.where(gpus > 0, int(Reason.RUNS), waits).astype(np.int8)
    return Decision(gpus, reasons, gpu_types=kinds if len(snapshot.capacity) > 1 else None, placements=sale.placements)


def _may_change(snapshot: Snapshot, decision: Decision) -> bool:
    """Whether the end of a lease can change anything: a job waits, or could have more or faster GPUs that idle."""
    if not decision.gpus.all():
        return True
    kinds = snapshot.gpu_type if decision.gpu_types is None else decision.gpu_types
    kinds = np.where(kinds >= 0, kinds, 0)
    idle = snapshot.capacity - np.bincount(kinds, decision.gpus, len(snapshot.capacity))
    if idle.sum() > 0 and bool((decision.gpus < snapshot.gpus_max).any()):
        return True
    now = snapshot.speeds[kinds, np.arange(len(snapshot))]
    faster = (snapshot.speeds > now * (1.0 + 1e-9)) & (snapshot.gpus_min <= idle[:, None])
    return bool(faster.any())
