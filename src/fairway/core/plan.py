"""From granted counts to concrete GPUs: which running jobs keep theirs, which start, move or stop.

Jobs whose grant is unchanged keep their GPUs. What the others held is freed on a scratch copy, then the new gangs are
placed, those that the policy places itself first, then the largest because they are the hardest to fit. A gang that
finds no place waits, with a reason.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fairway.core import kernels
from fairway.core.decision import Decision, Reason
from fairway.core.occupancy import Occupancy
from fairway.core.snapshot import Snapshot


class Placer(Protocol):
    """Chooses GPUs for one gang. `located` is False where positions carry no meaning (GPU counts only)."""

    name: str
    located: bool

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Free GPUs of this type for the gang, or None. Must not change `occupancy`."""
        ...


class Target(NamedTuple):
    """What a job whose allocation changes shall hold; no GPUs means that it shall wait."""

    row: int
    gpus: tuple[int, ...]
    gpu_type: int
    partner: int = -1


class Plan(NamedTuple):
    """The targets of all rows whose allocation changes, stops first, and how GPUs are taken once they are met."""

    targets: list[Target]
    occupancy: Occupancy


def plan(snapshot: Snapshot, decision: Decision, occupancy: Occupancy, placer: Placer) -> Plan:
    """Work out who holds which GPUs from now on."""
    rows = _changed(snapshot, decision, occupancy.shared)
    if not rows:
        return Plan([], occupancy)
    held = snapshot.held
    wanted = {row: int(decision.gpus[row]) for row in rows}
    stops = [Target(row, (), -1) for row in rows if not wanted[row]]
    scratch = occupancy.copy()
    for row in rows:
        if held[row]:
            scratch.give(snapshot.gpus_held(row))
    starts: list[Target] = []
    order = [row for row in rows if wanted[row] and row not in decision.partners]
    if len(order) > 1:
        order.sort(key=lambda row: (row not in decision.placements, -wanted[row]))
    for row in order:
        target = _place(snapshot, decision, scratch, placer, row, wanted[row])
        if target is None:
            _refuse(snapshot, decision, row, stops)
        else:
            scratch.take(target.gpus)
            starts.append(target)
    if decision.partners:
        placed = {target.row: target for target in starts}
        for guest in decision.partners:
            if wanted.get(guest):
                _join(snapshot, decision, guest, placed, starts, stops)
        for target in starts:
            if target.partner >= 0:
                scratch.take(target.gpus)
    return Plan(stops + starts, scratch)


def _changed(snapshot: Snapshot, decision: Decision, shared: bool) -> list[int]:
    """The rows whose allocation is to be another one."""
    rows: list[int] = kernels.differing(decision.gpus, snapshot.held).tolist()
    if decision.gpu_types is None and not decision.placements and not decision.partners and not shared:
        return rows
    changed = set(rows)
    if decision.gpu_types is not None:
        other = (decision.gpu_types != snapshot.gpu_type) & (decision.gpus > 0) & (decision.gpu_types >= 0)
        changed.update(other.nonzero()[0].tolist())
    changed.update(row for row, gpus in decision.placements.items() if gpus != snapshot.gpus_held(row))
    for guest, host in decision.partners.items():
        if host in changed or snapshot.partner[guest] != snapshot.jobs[host]:
            changed.add(guest)
    if shared:
        changed.update(_parted(snapshot, decision))
    return sorted(changed)


def _parted(snapshot: Snapshot, decision: Decision) -> list[int]:
    """Of each pair that shares GPUs now and shall not any more, the one that came later: it has to move."""
    wanted = {frozenset(pair) for pair in decision.partners.items()}
    parted = []
    for row in (snapshot.partner >= 0).nonzero()[0].tolist():
        other = int(snapshot.jobs.searchsorted(snapshot.partner[row]))
        if row > other and decision.gpus[row] and decision.gpus[other] and frozenset((row, other)) not in wanted:
            parted.append(row)
    return parted


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
            placed = placer.place(scratch, count, choice)
            if placed is not None:
                return Target(row, placed, choice)
    return None


def _types_to_try(snapshot: Snapshot, row: int) -> list[int]:
    """The GPU types that a job can use, the fastest first."""
    speeds = snapshot.speeds[:, row].tolist()
    if len(speeds) == 1:
        return [0]
    return sorted((kind for kind, speed in enumerate(speeds) if speed > 0), key=lambda kind: -speeds[kind])


def _refuse(snapshot: Snapshot, decision: Decision, row: int, stops: list[Target]) -> None:
    """No place for this gang: it waits, and says so."""
    decision.gpus[row] = 0
    decision.reasons[row] = int(Reason.NO_PLACEMENT)
    if snapshot.held[row]:
        stops.append(Target(row, (), -1))


def _join(
    snapshot: Snapshot,
    decision: Decision,
    guest: int,
    placed: dict[int, Target],
    starts: list[Target],
    stops: list[Target],
) -> None:
    """Put a guest on the GPUs of its host, whether that one has just been placed or runs already."""
    host = decision.partners[guest]
    gpus = placed[host].gpus if host in placed else snapshot.gpus_held(host) if decision.gpus[host] else ()
    if not gpus:
        _refuse(snapshot, decision, guest, stops)
        return
    kind = placed[host].gpu_type if host in placed else int(snapshot.gpu_type[host])
    starts.append(Target(guest, gpus, kind, partner=int(snapshot.jobs[host])))
