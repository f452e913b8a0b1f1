"""What agents bid: for each useful number of GPUs of each type, the value 1/rho that the app would then have.

There are exponentially many subsets of the offer. So an agent names sizes in whole gangs, on each GPU type that its
jobs can use: for one job its gang, or several sizes if it is elastic; for an app of several jobs one, two, three, … of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from fairway.core.arrays import Bools, Floats
from fairway.core.snapshot import Snapshot
from fairway.policies.themis.nash import Bid
from fairway.policies.themis.rho import Apps, value_of

T = TypeVar("T")
MOST_SIZES = 24
"""How many sizes an agent names at most on one type. Larger tables are thinned out evenly."""
_LEAST_EFFICIENCY = 0.05


class Grant(NamedTuple):
    """GPUs of one type for one row."""

    row: int
    kind: int
    gpus: int


class Tender(NamedTuple):
    """A bid, and which rows run in each of its columns."""

    bid: Bid
    grants: Sequence[tuple[Grant, ...]]


@dataclass(slots=True)
class BidMarket:
    """What agents know when they bid, as plain lists: the rows on offer by app, and the speeds of rows by type.

    `times[app]` is what `value_of` needs. `speed[kind][row]` is the work of one GPU of a type, in GPUs of the row's
    best type, if the row has to start there; `stays[row]` is the work on the GPUs that it holds. `base[app]` is the
    speed of its jobs whose leases go on.
    """

    apps: Apps
    times: list[tuple[float, float, float, float]]
    floor: float
    open_rows: dict[int, list[int]]
    gpus: list[int]
    low: list[int]
    high: list[int]
    held: list[int]
    kind: list[int]
    speed: list[list[float]]
    stays: list[float]
    base: list[float]

    def speed_on(self, row: int, kind: int, gpus: int) -> float:
        """The work of a row on GPUs of a type. For what it holds already it needs no restart."""
        if self.held[row] == gpus and self.kind[row] == kind:
            return self.stays[row]
        return gpus * self.speed[kind][row]


def market_of(
    snapshot: Snapshot, apps: Apps, relative: Floats, on_offer: Bools, lease_s: float, floor: float
) -> BidMarket:
    """Open the market for the rows on offer: those that wait, and those whose lease is over."""
    # A restart takes its part of the lease; the first start of a job is free.
    lost = np.where(snapshot.launches > 0, snapshot.restart_s / lease_s, 0.0)
    efficiency = np.maximum(1.0 - lost, _LEAST_EFFICIENCY)
    seen = snapshot.rate / np.maximum(snapshot.best_speed, 1e-300) * snapshot.gpus
    nominal = snapshot.held * relative[np.maximum(snapshot.gpu_type, 0), np.arange(len(snapshot))]
    stays = np.where(snapshot.rate > 0, seen, nominal)
    goes_on = np.where(on_offer, 0.0, stays)
    open_rows: dict[int, list[int]] = {}
    rows = on_offer.nonzero()[0]
    for row, app in zip(rows.tolist(), apps.of_row[rows].tolist(), strict=True):
        open_rows.setdefault(app, []).append(row)
    columns = (apps.elapsed_s, apps.left_gpu_s, apps.longest_s, apps.ideal_s)
    return BidMarket(
        apps,
        list(zip(*(column.tolist() for column in columns), strict=True)),
        floor,
        open_rows,
        snapshot.gpus.tolist(),
        snapshot.gpus_min.tolist(),
        snapshot.gpus_max.tolist(),
        snapshot.held.tolist(),
        snapshot.gpu_type.tolist(),
        (relative * efficiency).tolist(),
        stays.tolist(),
        np.bincount(apps.of_row, goes_on, apps.number).tolist(),
    )


def tender_of(market: BidMarket, app: int, offer: Sequence[int]) -> Tender:
    """The table of one app."""
    rows = market.open_rows[app]
    found = _sizes(market, rows[0], offer) if len(rows) == 1 else _prefixes(market, rows, offer)
    base = market.base[app]
    used: list[tuple[int, ...]] = [(0,) * len(offer)]
    values: list[float] = [0.0]
    grants: list[tuple[Grant, ...]] = [()]
    for columns in found:
        counts, speed = [0] * len(offer), base
        for grant in columns:
            counts[grant.kind] += grant.gpus
            speed += market.speed_on(*grant)
        used.append(tuple(counts))
        values.append(value_of(*market.times[app], speed))
        grants.append(columns)
    if base > 0:
        values[0] = value_of(*market.times[app], base)
    elif len(values) > 1:
        # Nothing at all would be worth 0, and so would the product: see the documentation of the floor.
        values[0] = market.floor * min(values[1:])
    return Tender(Bid(used, values), grants)


def _sizes(market: BidMarket, row: int, offer: Sequence[int]) -> list[tuple[Grant, ...]]:
    """One job: its gang on each type. An elastic one: multiples of its smallest gang, and its present size."""
    low, high = market.low[row], market.high[row]
    found: list[tuple[Grant, ...]] = []
    for kind, free in enumerate(offer):
        if market.speed[kind][row] <= 0 or low > free:
            continue
        most = min(high, free)
        if low == high:
            found.append((Grant(row, kind, low),))
            continue
        sizes = {*_thinned(list(range(low, most + 1, low))), most}
        if market.kind[row] == kind and low <= market.held[row] <= most:
            sizes.add(market.held[row])
        found += [(Grant(row, kind, size),) for size in sorted(sizes)]
    return found


def _prefixes(market: BidMarket, rows: Sequence[int], offer: Sequence[int]) -> list[tuple[Grant, ...]]:
    """Several jobs: the first, the first two, … (running jobs first), starting with each of the types in turn."""
    order = sorted(rows, key=lambda row: (market.held[row] == 0, row))
    seen: set[tuple[Grant, ...]] = set()
    found: list[tuple[Grant, ...]] = []
    for first in range(len(offer)):
        free, taken = list(offer), list[Grant]()
        sizes: list[tuple[Grant, ...]] = []
        for row in order:
            grant = next_gang(market, row, free, first)
            if grant is not None:
                free[grant.kind] -= grant.gpus
                taken.append(grant)
                sizes.append(tuple(taken))
        for size in _thinned(sizes):
            if size not in seen:
                seen.add(size)
                found.append(size)
    return found


def next_gang(market: BidMarket, row: int, free: Sequence[int], first: int = -1) -> Grant | None:
    """A gang for a row where there is room: what it holds already, else on a preferred or the fastest type."""
    kind, held = market.kind[row], market.held[row]
    if held and free[kind] >= held:
        return Grant(row, kind, held)
    kinds: Sequence[int] = (0,)
    if len(free) > 1:
        kinds = sorted(range(len(free)), key=lambda k: (k != first, -market.speed[k][row], k))
    for size in (market.gpus[row], market.low[row]):
        for choice in kinds:
            if market.speed[choice][row] > 0 and free[choice] >= size:
                return Grant(row, choice, size)
    return None


def _thinned(sizes: list[T]) -> list[T]:
    """At most `MOST_SIZES` of them, evenly spread, the last one included."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    at = np.unique(np.linspace(0, len(sizes) - 1, MOST_SIZES).round().astype(int))
    return [sizes[index] for index in at.tolist()]
