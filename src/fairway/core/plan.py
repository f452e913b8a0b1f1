"""From granted counts to concrete GPUs: which running jobs keep theirs, which start, move or stop.

Jobs whose grant is unchanged keep their GPUs. What the others held is freed on a scratch copy. Then the new gangs are
placed: first those that the policy places itself, then the largest, because they are the hardest to fit. A gang that
finds no place is refused: it waits, with a reason.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, Self

from fairway.core import kernels
from fairway.core.decision import Decision, Reason
from fairway.core.occupancy import Occupancy
from fairway.core.snapshot import Snapshot


class Placer(Protocol):
    """Chooses GPUs for one gang. `located` is False where positions carry no meaning (GPU counts only)."""

    name: str
    located: bool

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        """The placer that suits a row: itself, where all jobs are placed alike."""
        ...

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """When a row that finds no place now may find one although nothing happens; infinite if never."""
        ...

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Free GPUs of this type for the gang, or None. Must not change `occupancy`."""
        ...


class AllAlike:
    """A placer that places all jobs alike, and for which only events make room."""

    def suited(self, snapshot: Snapshot, row: int) -> Self:
        return self

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        return math.inf


class Target(NamedTuple):
    """What a job whose allocation changes shall hold. No GPUs: it shall wait."""

    row: int
    gpus: tuple[int, ...]
    gpu_type: int
    host: int = -1


class Plan(NamedTuple):
    """The targets of all rows whose allocation changes, stops first, and how GPUs are taken once they are met.

    `throttles` are rows that share GPUs and stay where they are with another throttle, `batches` rows that stay and
    get another batch. `refused` are rows that found no place; they may find one at `retry_s` although nothing happens.
    """

    targets: list[Target]
    occupancy: Occupancy
    throttles: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    refused: frozenset[int] = frozenset()
    retry_s: float = math.inf

    def kept(self, decision: Decision) -> Decision:
        """The decision without what the plan refuses."""
        if not self.refused:
            return decision
        return decision.without(self.refused, Reason.NO_PLACEMENT).waking(self.retry_s)


def plan(snapshot: Snapshot, decision: Decision, occupancy: Occupancy, placer: Placer) -> Plan:
    """Work out which GPUs each job holds from now on."""
    rows = _changed(snapshot, decision, occupancy.shared)
    throttles = _rethrottled(snapshot, decision, rows) if decision.partners or decision.throttles else ()
    batches = _rebatched(snapshot, decision, rows) if decision.batches else ()
    if not rows:
        return Plan([], occupancy, throttles, batches)
    held, partners = snapshot.held, decision.partners
    wanted = {row: int(decision.gpus[row]) for row in rows}
    stops = [Target(row, (), -1) for row in rows if not wanted[row]]
    scratch = occupancy.copy()
    for row in rows:
        if held[row]:
            scratch.give(snapshot.gpus_held(row))
    starts: list[Target] = []
    refused: dict[int, float] = {}
    for row in _placing_order(decision, wanted):
        target = _place(snapshot, decision, scratch, placer, row, wanted[row])
        if target is None:
            refused[row] = placer.retry_s(snapshot, row)
        else:
            scratch.take(target.gpus)
            starts.append(target)
    placed = {target.row: target for target in starts} if partners else {}
    for guest in partners:
        if wanted.get(guest):
            target = None if partners[guest] in refused else _join(snapshot, decision, guest, placed, scratch)
            if target is None:
                refused[guest] = math.inf
            else:
                scratch.take(target.gpus)
                starts.append(target)
    if not refused:
        return Plan(stops + starts, scratch, throttles, batches)
    stops += [Target(row, (), -1) for row in refused if held[row]]
    return Plan(stops + starts, scratch, throttles, batches, frozenset(refused), min(refused.values()))


def _placing_order(decision: Decision, wanted: dict[int, int]) -> list[int]:
    """The rows that need GPUs of their own: those that the policy places first, then in its order, then the largest."""
    order = [row for row, count in wanted.items() if count and row not in decision.partners]
    if len(order) > 1:
        turn = {row: at for at, row in enumerate(decision.order)}
        order.sort(key=lambda row: (row not in decision.placements, turn.get(row, len(turn)), -wanted[row]))
    return order


def _changed(snapshot: Snapshot, decision: Decision, shared: bool) -> list[int]:
    """The rows whose allocation changes."""
    rows: list[int] = kernels.differing(decision.gpus, snapshot.held).tolist()
    if snapshot.queues is not None:
        rows = [row for row in rows if decision.reasons[row] != int(Reason.QUEUED)]
    if decision.gpu_types is None and not decision.placements and not decision.partners and not shared:
        return rows
    changed = set(rows)
    if decision.gpu_types is not None:
        other = (decision.gpu_types != snapshot.gpu_type) & (decision.gpus > 0) & (decision.gpu_types >= 0)
        changed.update(other.nonzero()[0].tolist())
    changed.update(row for row, gpus in decision.placements.items() if gpus != snapshot.gpus_held(row))
    partners = decision.partners.items()
    changed.update(guest for guest, host in partners if host in changed or not snapshot.share_gpus(guest, host))
    if shared:
        changed.update(_parted(snapshot, decision, changed))
        changed.update(guest for guest, host in partners if host in changed)
    return sorted(changed)


def _parted(snapshot: Snapshot, decision: Decision, changed: set[int]) -> list[int]:
    """Guests that would stay, but shall no longer share with the jobs that stay there. They have to move."""
    partners, root_on, parted = decision.partners, dict[int, int](), []
    host, jobs, gpus, held = snapshot.host.tolist(), snapshot.jobs.tolist(), decision.gpus.tolist(), snapshot.frame
    for row in sorted(snapshot.running_rows.tolist(), key=lambda row: host[row] >= 0):
        if gpus[row] and row not in changed:
            mine, root = held.held_gpus[jobs[row]], partners.get(row, row)
            if any(root_on.get(gpu, root) != root for gpu in mine):
                parted.append(row)
                continue
            for gpu in mine:
                root_on[gpu] = root
    return parted


def _rethrottled(snapshot: Snapshot, decision: Decision, changed: list[int]) -> tuple[int, ...]:
    """Rows that keep their GPUs but get another throttle: guests, hosts, and those that have their GPUs alone now."""
    throttle, partners = snapshot.throttle, decision.partners
    return tuple(
        row
        for row in sorted({*partners, *partners.values(), *decision.throttles})
        if decision.gpus[row] and row not in changed and throttle[row] != decision.throttles.get(row, 1.0)
    )


def _rebatched(snapshot: Snapshot, decision: Decision, changed: list[int]) -> tuple[int, ...]:
    """Running rows that keep their GPUs but get another batch."""
    moved = set(changed)
    stay = (row for row in sorted(decision.batches) if row not in moved)
    return tuple(row for row in stay if snapshot.facts(row).split != decision.batches[row])


def _place(
    snapshot: Snapshot, decision: Decision, scratch: Occupancy, placer: Placer, row: int, count: int
) -> Target | None:
    if row in decision.placements:
        gpus = decision.placements[row]
        kind = snapshot.cluster.node_type[scratch.node_of_gpu[gpus[0]]]
        free = all(scratch.tenants(gpu) == 0 and scratch.node_of_gpu[gpu] not in scratch.down for gpu in gpus)
        return Target(row, gpus, kind) if free and len(gpus) == count else None
    kind = -1 if decision.gpu_types is None else int(decision.gpu_types[row])
    for choice in [kind] if kind >= 0 else _types_to_try(snapshot, row):
        if scratch.free_by_type[choice] >= count:
            placed = placer.suited(snapshot, row).place(scratch, count, choice)
            if placed is not None:
                return Target(row, placed, choice)
    return None


def _types_to_try(snapshot: Snapshot, row: int) -> list[int]:
    """The GPU types that a job can use, the fastest first."""
    speeds = snapshot.speeds[:, row].tolist()
    if len(speeds) == 1:
        return [0]
    return sorted((kind for kind, speed in enumerate(speeds) if speed > 0), key=lambda kind: -speeds[kind])


def _join(
    snapshot: Snapshot, decision: Decision, guest: int, placed: dict[int, Target], scratch: Occupancy
) -> Target | None:
    """Put a guest on GPUs of its host, which has just been placed or runs already.

    A guest that is smaller than its host takes GPUs without other guests, so that guests are nested or apart.
    """
    host = decision.partners[guest]
    gpus = placed[host].gpus if host in placed else snapshot.gpus_held(host) if decision.gpus[host] else ()
    need = int(decision.gpus[guest])
    if len(gpus) < need:
        return None
    kind = placed[host].gpu_type if host in placed else int(snapshot.gpu_type[host])
    if len(gpus) > need:
        gpus = tuple(gpu for gpu in gpus if scratch.tenants(gpu) == 1)[:need]
        if len(gpus) < need:
            return None
    return Target(guest, gpus, kind, host=int(snapshot.jobs[host]))
