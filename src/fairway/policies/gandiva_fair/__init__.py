"""Gandiva_fair: GPU time per user by tickets, for gangs, on mixed GPUs (Chaudhary et al., EuroSys'20).

Users hold tickets. Each node serves the jobs that belong to it by stride, where a gang of g GPUs pays g times. Jobs
larger than a node are served from the same order. Homes are chosen so that nodes carry equal ticket loads. Users whose
jobs gain little from fast GPUs sell theirs to users whose jobs gain much, at a price that leaves both better off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core.arrays import Bools, Floats, Ints
from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.policies.gandiva_fair.accounts import Accounts, recall, remember
from fairway.policies.gandiva_fair.homes import Loads, Types, even_out
from fairway.policies.gandiva_fair.rooms import NodeGpus, Rooms, concrete
from fairway.policies.gandiva_fair.stride import HORIZON_QUANTA, near_the_mean, turns
from fairway.policies.gandiva_fair.tickets import entitlements, job_tickets, user_tickets
from fairway.policies.gandiva_fair.trade import trade_all, values_of, worth_of
from fairway.policies.gandiva_fair.walk import Turn
from fairway.policies.registry import check_native, register

_MOMENT_S = 1e-6
BEHIND_QUANTA = 3.0
"""How far a user's pass may fall behind the mean before its jobs move to any place with room."""


@register
@dataclass(frozen=True)
class GandivaFair:
    """Ticket shares per user by gang-aware stride, balanced over nodes; fast GPUs traded for slow ones.

    Knows: GPU-seconds attained, owners, weights, gang sizes, speeds by GPU type. Preempts.

    Suspends in place and names concrete GPUs. Users hold as many tickets as their jobs weigh on average. Turns change
    every `quantum_s`. `balance` is the gap in tickets per GPU between nodes above which jobs are moved. Every
    `retype_s` all jobs are assigned to GPU types again. After `patience` blocked turns a gang's node is kept clear.
    `published` is the rule of the same name in Shockwave's simulator: equal time for every job, whatever its gang.
    """

    quantum_s: float = 60.0
    trade: bool = True
    balance: float = 0.25
    retype_s: float = 600.0
    patience: int = 5
    published: bool = False

    name: ClassVar[str] = "gandiva_fair"
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset({"weight"})
    round_s: ClassVar[float] = 0.0
    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {"published": (True,)}

    def __post_init__(self) -> None:
        check_native(self)
        if not (math.isfinite(self.quantum_s) and self.quantum_s >= 0.1):
            raise ValueError(f"quantum_s must be at least 0.1, not {self.quantum_s:g}")
        if not (math.isfinite(self.retype_s) and self.retype_s >= self.quantum_s):
            raise ValueError(f"retype_s must be at least a quantum, not {self.retype_s:g}")
        if not (math.isfinite(self.balance) and self.balance >= 0):
            raise ValueError(f"balance must be at least 0, not {self.balance:g}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, not {self.patience}")

    def decide(self, snapshot: Snapshot) -> Decision:
        if not len(snapshot):
            return nothing_granted(0)
        accounts, nodes = recall(snapshot), NodeGpus(snapshot)
        shares = self.shares(snapshot)
        tickets = job_tickets(shares.sum(axis=0), snapshot.user, snapshot.weight, snapshot.gpus)
        self._forget_old_debts(snapshot, accounts, tickets, shares)
        begins = self._quantum_begins(snapshot, accounts)
        self._settle_down(snapshot, accounts, nodes, tickets, shares, begins)
        turn = self._serve(snapshot, accounts, nodes, shares, begins)
        return self._decision(snapshot, accounts, turn, tickets, shares)

    def shares(self, snapshot: Snapshot) -> Floats:
        """GPUs of each type (rows) that each user (columns) is entitled to, after trades."""
        users, user, gpus, speeds = len(snapshot.names.users), snapshot.user, snapshot.gpus, snapshot.speeds
        demand = np.bincount(user, gpus, minlength=users).astype(np.float64)
        by_type = np.array([np.bincount(user, np.where(able, gpus, 0), minlength=users) for able in speeds > 0])
        tickets, order = user_tickets(user, snapshot.weight, users), _fastest_first(snapshot)
        shares = entitlements(tickets, demand, by_type, snapshot.capacity, order)
        if not self.trade or len(order) == 1:
            return shares
        limits = np.vstack([by_type, demand])
        return trade_all(shares, worth_of(speeds, gpus, user, users), limits, order)

    def _forget_old_debts(self, snapshot: Snapshot, accounts: Accounts, tickets: Floats, shares: Floats) -> None:
        """Keep passes within a horizon, so that users do not pay long after for GPUs that would have been idle."""
        user, gpus, users = snapshot.user, snapshot.gpus, len(snapshot.names.users)
        horizon_s, entitled = HORIZON_QUANTA * self.quantum_s, shares.sum(axis=0)
        largest = np.zeros(users)
        np.maximum.at(largest, user, gpus)
        present, one = entitled > 0, np.zeros(users, dtype=np.int64)
        lead_s = horizon_s * np.maximum(1.0, largest / np.maximum(entitled, 1e-9))
        near = near_the_mean(accounts.user_passes, entitled, one, 1, lead_s)
        accounts.user_passes = np.where(present, near, accounts.user_passes)
        accounts.passes = near_the_mean(accounts.passes, tickets, user, users, horizon_s * gpus / tickets)
        limit = horizon_s * entitled
        accounts.owed_gpu_s = np.clip(accounts.owed_gpu_s, -limit, limit)

    def _quantum_begins(self, snapshot: Snapshot, accounts: Accounts) -> bool:
        """Whether this is a boundary, or one was missed because rounds are longer than a quantum."""
        if snapshot.now_s >= accounts.due_s - _MOMENT_S:
            return True
        quanta = snapshot.now_s / self.quantum_s
        return abs(quanta - round(quanta)) * self.quantum_s < _MOMENT_S

    def _settle_down(
        self, snapshot: Snapshot, accounts: Accounts, nodes: NodeGpus, tickets: Floats, shares: Floats, begins: bool
    ) -> None:
        """Types for jobs that need one, homes on nodes that are up, and equal loads."""
        kinds, homes, gpus = accounts.kinds, accounts.homes, snapshot.gpus
        if len(snapshot.capacity) == 1:
            kinds[:] = 0
        else:
            self._choose_types(snapshot, accounts, tickets, shares, begins)
        node_type, largest = snapshot.cluster.node_type, np.array(nodes.largest)
        usable = np.array([kind if nodes.sizes[node] else -1 for node, kind in enumerate(node_type)] + [-1])
        homes[(usable[homes] != kinds) | (gpus > np.array([*nodes.sizes, 0])[homes])] = -1
        # As long as there is room for every job, gangs are packed where they fit best and belong there.
        if snapshot.demand <= snapshot.capacity.sum():
            return
        loads = Loads(nodes, homes, tickets)
        for row in ((homes < 0) & (gpus <= largest[kinds])).nonzero()[0].tolist():
            homes[row] = loads.lightest(int(kinds[row]), int(gpus[row]))
            loads.move(float(tickets[row]), -1, int(homes[row]))
        if begins:
            movable = (~snapshot.running & (homes >= 0)).nonzero()[0]
            even_out(loads, homes, tickets, gpus, movable, self.balance)

    def _choose_types(
        self, snapshot: Snapshot, accounts: Accounts, tickets: Floats, shares: Floats, begins: bool
    ) -> None:
        """Jobs without a type get one; from time to time all do, so that what users are owed evens out."""
        period_s = self.retype_s
        again = begins and snapshot.now_s >= accounts.typed_s + period_s - _MOMENT_S
        choose = np.ones(len(snapshot), dtype=np.bool_) if again else accounts.kinds < 0
        choose[snapshot.protected_rows] = False
        if again:
            accounts.typed_s = snapshot.now_s
        if choose.any():
            due = shares + accounts.owed_gpu_s / period_s
            types = Types(accounts.kinds, tickets, snapshot.user, snapshot.speeds, due, snapshot.capacity)
            types.assign(choose.nonzero()[0], _fastest_first(snapshot))

    def _serve(self, snapshot: Snapshot, accounts: Accounts, nodes: NodeGpus, shares: Floats, begins: bool) -> Turn:
        """Serve jobs that may not be stopped, then walk if a quantum begins, then give idle GPUs to waiting jobs."""
        rooms, running = Rooms(nodes, snapshot.capacity), snapshot.running_rows.tolist()
        here = {row: rooms.parts_of(accounts.left[row]) for row in running}
        sizes, kinds, homes = snapshot.gpus.tolist(), accounts.kinds.tolist(), accounts.homes.tolist()
        turn = Turn(rooms, sizes, kinds, homes, snapshot.speeds, here, accounts.left)
        stay = snapshot.protected_rows if begins else snapshot.running_rows
        turn.keep(stay.tolist(), snapshot.held, snapshot.gpu_type)
        runs = np.zeros(len(snapshot), dtype=np.bool_)
        runs[stay] = True
        entitled, user = shares.sum(axis=0), snapshot.user
        about = (user, snapshot.gpus, entitled, self.quantum_s, runs)
        order: list[int] = turns(accounts.user_passes, accounts.passes, *about).tolist()
        if begins:
            behind = self._behind(accounts, entitled)[user].tolist()
            turn.walk(order, behind, accounts.blocked.tolist(), self.patience)
            accounts.blocked[turn.blocked] += 1
        else:
            rooms.closed = {node: row for node, row in accounts.closed.items() if row not in turn.granted}
        if any(rooms.by_type):
            turn.fill(order)
        accounts.blocked[list(turn.granted)] = 0
        accounts.closed = rooms.closed
        return turn

    def _behind(self, accounts: Accounts, entitled: Floats) -> Bools:
        """Users so far behind the mean that their jobs do not wait for room at home."""
        mean = float((accounts.user_passes * entitled).sum() / max(float(entitled.sum()), 1e-12))
        return np.asarray(accounts.user_passes < mean - BEHIND_QUANTA * self.quantum_s)

    def _decision(
        self, snapshot: Snapshot, accounts: Accounts, turn: Turn, tickets: Floats, shares: Floats
    ) -> Decision:
        """Grants, places, and why jobs wait."""
        gpus, kinds = np.zeros(len(snapshot), dtype=np.int64), accounts.kinds.copy()
        rows = list(turn.granted)
        gpus[rows], kinds[rows] = list(turn.counts.values()), list(turn.types.values())
        types = np.where(gpus > 0, kinds, -1) if len(snapshot.capacity) > 1 else None
        accounts.due_s = self._next_quantum_s(snapshot, accounts, types, turn)
        values = values_of(snapshot.speeds, snapshot.gpus, snapshot.user, len(snapshot.names.users))
        why = Reason.NOT_ITS_TURN if turn.granted else Reason.NO_FREE_GPUS
        return Decision(
            gpus,
            np.multiply(gpus == 0, int(why), dtype=np.int8),
            gpu_types=types,
            wake_s=accounts.due_s,
            memory=remember(snapshot, accounts, tickets, (shares, values), gpus, kinds),
            placements=concrete(turn.rooms, turn.granted, turn.here, accounts.left),
            warm=True,
            texts=_texts(snapshot, accounts, turn, gpus, shares.sum(axis=0)),
        )

    def _next_quantum_s(self, snapshot: Snapshot, accounts: Accounts, types: Ints | None, turn: Turn) -> float:
        """The next boundary while a job waits; the next choice of types while a job would be faster on another."""
        if not turn.granted and not turn.rooms.closed:
            return math.inf
        from_s = snapshot.now_s
        if len(turn.granted) == len(snapshot):
            if types is None or not _wants_another_type(snapshot, types):
                return math.inf
            from_s = max(from_s, accounts.typed_s + self.retype_s - self.quantum_s)
        return (math.floor(from_s / self.quantum_s + 1e-9) + 1) * self.quantum_s


def _texts(snapshot: Snapshot, accounts: Accounts, turn: Turn, gpus: Ints, entitled: Floats) -> dict[int, str]:
    """Why jobs wait: the position of their owners, or the jobs in their way."""
    if not turn.granted:
        return {}
    waits, user, next_s = (gpus == 0).nonzero()[0], snapshot.user, accounts.due_s
    holds = np.bincount(user, gpus, minlength=len(entitled))
    words = {
        owner: f"its owner is entitled to {entitled[owner]:.1f} GPUs and holds {holds[owner]:.0f} in this quantum; "
        f"turns change at {next_s:.0f} s"
        for owner in np.unique(user[waits]).tolist()
    }
    texts = {row: words[owner] for row, owner in zip(waits.tolist(), user[waits].tolist(), strict=True)}
    for row in turn.blocked:
        if row in texts:
            home = int(accounts.homes[row])
            where = f"on {snapshot.cluster.nodes[home].name}" if home >= 0 else "on the nodes that it needs"
            texts[row] = f"it is its turn, but jobs that were started a moment ago hold GPUs {where}"
    return texts


def _wants_another_type(snapshot: Snapshot, kinds: Ints) -> bool:
    """Whether GPUs of another type would serve some running job better: then users take turns on types."""
    speeds = snapshot.speeds[snapshot.capacity > 0]
    now = np.take_along_axis(snapshot.speeds, np.maximum(kinds, 0)[None, :], axis=0)[0]
    return bool((speeds.max(axis=0, initial=0.0) > now).any())


def _fastest_first(snapshot: Snapshot) -> list[int]:
    """GPU types by falling speed."""
    types = snapshot.cluster.types
    return sorted(range(len(types)), key=lambda kind: -types[kind].speed)
