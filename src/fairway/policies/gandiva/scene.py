"""One decision in the making: the units, the nodes, the memory, and the few ways in which a unit can change."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies.gandiva.homes import NodeLoads
from fairway.policies.gandiva.units import GandivaNotes, Home, Unit, home_of, read_units

EARLY_S = 1e-6


class Knobs(Protocol):
    """What the user may set; see `Gandiva`."""

    @property
    def quantum_s(self) -> float: ...
    @property
    def pack(self) -> int: ...
    @property
    def trial_s(self) -> float: ...
    @property
    def cooldown_s(self) -> float: ...
    @property
    def hysteresis(self) -> float: ...
    @property
    def migrate(self) -> bool: ...
    @property
    def grow(self) -> bool: ...
    @property
    def patience(self) -> int: ...
    @property
    def overhead(self) -> float: ...


class GandivaScene:
    """Everything that one decision reads and changes. `turn` says that a quantum ends now.

    `running` are the units that hold GPUs now, `active` those that shall run from now on, by their first row. `waiting`
    units have no GPUs yet; those that have waited longest come first. `grown` units may be shrunk at once. `reverts`
    are units whose move did not pay, with their old home. `holds` are free GPUs that are kept clear, by unit.
    """

    def __init__(self, snapshot: Snapshot, knobs: Knobs) -> None:
        self.snapshot = snapshot
        self.knobs = knobs
        self.now_s = snapshot.now_s
        self.keys = [str(job) for job in snapshot.jobs.tolist()]
        self.row_of = {key: row for row, key in enumerate(self.keys)}
        self.notes = GandivaNotes(snapshot.memory, len(snapshot.cluster.nodes))
        self.floor = NodeLoads(snapshot.cluster, snapshot.node_sizes, self.notes.affinity)
        self.units, self.refused = read_units(snapshot, self.notes, self.row_of, self.floor.sizes)
        self.rates: list[float] = snapshot.rate.tolist()
        self.held: list[int] = snapshot.held.tolist()
        self.models: list[int] = snapshot.model.tolist()
        self.batch_sizes: list[int] = snapshot.batch_size.tolist()
        self.hint = [gpu.speed for gpu in snapshot.cluster.types]
        self.waiting: list[Unit] = []
        self.reverts: list[tuple[Unit, Home]] = []
        self.grown: list[Unit] = []
        self.holds: dict[Unit, Home] = {}
        self.turn = self._is_turn()
        self.wake_s = math.inf
        self._kinds: dict[int, tuple[int, ...]] = {}
        self._names: dict[tuple[int, int], str] = {}
        self.running = [unit for unit in self.units if unit.gpus]
        self.active: dict[int, Unit] = {}
        self.floor.settle_all(self.units)
        self._fix()

    def _is_turn(self) -> bool:
        due_s = self.notes.due_s
        if due_s is not None:
            # Once for each quantum, even if there are several rounds at the instant of its end. If rounds have a length
            # of their own, a quantum ends with the first round after it.
            return self.now_s >= due_s - EARLY_S
        quanta = self.now_s / self.knobs.quantum_s
        return abs(quanta - round(quanta)) * self.knobs.quantum_s < EARLY_S

    def _fix(self) -> None:
        """Units with a job that has just started are left alone."""
        protected = set(self.snapshot.protected_rows.tolist())
        for unit in self.running if protected else ():
            unit.fixed = not protected.isdisjoint(unit.rows)

    def key(self, unit: Unit) -> str:
        """The name of a unit's first job in the memory."""
        return self.keys[unit.rows[0]]

    def kind_of_job(self, row: int) -> str:
        """Jobs of one model and batch size are of a kind: what is seen of one is expected of the others."""
        about = self.models[row], self.batch_sizes[row]
        name = self._names.get(about)
        if name is None:
            name = self._names[about] = f"{about[0]}.{about[1]}"
        return name

    def kinds(self, unit: Unit) -> tuple[int, ...]:
        """The GPU types on which all jobs of a unit can run. Those that are said to be faster come first."""
        if len(self.hint) == 1:
            return (0,)
        kinds = self.kinds_of(unit.rows[0])
        if unit.packed:
            kinds = tuple(kind for kind in kinds if all(kind in self.kinds_of(row) for row in unit.rows))
        return kinds

    def kinds_of(self, row: int) -> tuple[int, ...]:
        """The GPU types on which one job can run. Those that are said to be faster come first."""
        known = self._kinds.get(row)
        if known is None:
            speeds = self.snapshot.speeds[:, row].tolist()
            usable = [kind for kind, speed in enumerate(speeds) if speed > 0]
            known = self._kinds[row] = tuple(sorted(usable, key=lambda kind: -self.hint[kind]))
        return known

    def kind(self, unit: Unit) -> int:
        """The GPU type of a unit's home."""
        return self.floor.kind[unit.home[0][0]]

    def rests(self, unit: Unit) -> bool:
        """Whether a unit shall be left alone after a change."""
        return self.notes.rest.get(self.key(unit), 0.0) > self.now_s

    def grant(self, unit: Unit) -> None:
        """A unit runs from now on, in its home."""
        unit.granted = True
        self.active[unit.rows[0]] = unit
        self.floor.take(unit.home)
        self.notes.blocked.pop(self.key(unit), None)

    def stop(self, unit: Unit) -> None:
        """A running unit gives up its GPUs."""
        unit.granted = unit.stays = False
        del self.active[unit.rows[0]]
        self.floor.give(unit.home)
        if unit.size > unit.gang:
            self.resize(unit, unit.gang)
            self.grown = [other for other in self.grown if other is not unit]

    def rehome(self, unit: Unit, home: Home) -> None:
        """Give a unit that has claimed no GPUs another home."""
        self.floor.leave(unit.home)
        unit.home = home
        unit.stays, unit.moved = False, True
        self.floor.settle(home, unit.gang)

    def move(self, unit: Unit, home: Home) -> None:
        """Let a running unit go on elsewhere, and leave it alone for a while."""
        self.floor.give(unit.home)
        self.rehome(unit, home)
        self.floor.take(home)
        self.notes.rest[self.key(unit)] = self.now_s + self.knobs.cooldown_s

    def resize(self, unit: Unit, size: int) -> None:
        """Let a unit on one node, which has claimed no GPUs, run on `size` GPUs of the node."""
        self.rehome(unit, ((unit.home[0][0], size),))
        unit.size = size
        unit.last = unit.gpus[:size]

    def split(self, unit: Unit, row: int) -> Unit:
        """Take a job out of a pack. It has to find a place of its own."""
        unit.rows.remove(row)
        unit.moved = True
        alone = Unit(row, unit.gang, unit.home, unit.last, self.now_s)
        alone.gpus, alone.out = unit.gpus, True
        self.floor.settle(alone.home, alone.gang)
        self.notes.trials.pop(self.keys[row], None)
        return alone

    def join(self, guest: Unit, host: Unit) -> None:
        """A waiting job becomes part of a running unit."""
        self.floor.leave(guest.home)
        self.notes.blocked.pop(self.key(guest), None)
        host.rows += guest.rows
        guest.rows = []

    def ask_again(self, after_s: float) -> None:
        """Ask to be woken at the end of the first quantum after an instant."""
        quantum_s = self.knobs.quantum_s
        after_s = max(after_s, self.now_s)
        turn_s = (math.floor(after_s / quantum_s + 1e-9) + 1) * quantum_s
        self.wake_s = min(self.wake_s, turn_s if turn_s > self.now_s + EARLY_S else turn_s + quantum_s)


def answer(scene: GandivaScene) -> Decision:
    """The decision of a scene, and what to remember."""
    rows = len(scene.keys)
    gpus = np.zeros(rows, dtype=np.int64)
    reasons = np.full(rows, int(Reason.NOT_ITS_TURN), dtype=np.int8)
    types = np.full(rows, -1, dtype=np.int64)
    placements = _concrete(scene)
    partners: dict[int, int] = {}
    for unit in scene.active.values():
        for row in unit.rows:
            gpus[row], reasons[row], types[row] = unit.size, Reason.RUNS, scene.kind(unit)
        if unit.packed:
            partners.update((row, unit.rows[0]) for row in unit.rows[1:])
    for unit in scene.waiting:
        if not unit.home:
            reasons[unit.rows] = int(Reason.NO_FREE_GPUS)
    wake_s = scene.wake_s if scene.active else math.inf
    scene.notes.due_s = wake_s if math.isfinite(wake_s) else None
    _remember(scene, placements)
    return Decision(
        gpus,
        reasons,
        gpu_types=types if len(scene.hint) > 1 else None,
        wake_s=wake_s,
        memory=scene.notes.plain(scene.row_of, scene.now_s),
        partners=partners,
        placements=placements,
        warm=True,
    )


def _concrete(scene: GandivaScene) -> dict[int, tuple[int, ...]]:
    """GPUs for the units that start, resume, move or change their size; their former ones if these can be had."""
    cluster = scene.snapshot.cluster
    first_gpu, node_of_gpu = cluster.first_gpu, cluster.node_of_gpu
    taken = set(scene.snapshot.withheld_gpus)
    for unit in scene.active.values():
        if unit.stays:
            taken.update(unit.gpus)
    placements: dict[int, tuple[int, ...]] = {}
    others: list[Unit] = []
    for row, unit in scene.active.items():
        if not unit.stays:
            if taken.isdisjoint(unit.last) and unit.last and home_of(unit.last, node_of_gpu) == unit.home:
                placements[row] = unit.last
                taken.update(unit.last)
            else:
                others.append(unit)
    for unit in others:
        chosen: list[int] = []
        for node, count in unit.home:
            mine = range(first_gpu[node], first_gpu[node] + cluster.nodes[node].gpus)
            kept = [gpu for gpu in unit.gpus if gpu in mine and gpu not in taken]
            free = [gpu for gpu in mine if gpu not in taken and gpu not in kept]
            chosen += sorted((kept + free)[:count])
        placements[unit.rows[0]] = tuple(chosen)
        taken.update(chosen)
    return placements


def _remember(scene: GandivaScene, placements: dict[int, tuple[int, ...]]) -> None:
    """Remember homes and GPUs of all units for which they may have changed, the packs, and what stayed idle."""
    notes, keys = scene.notes, scene.keys
    changed = [unit for unit in scene.waiting if unit.gpus or unit.moved]
    for unit in (*scene.active.values(), *changed):
        home = unit.home if unit.size == unit.gang else ((unit.home[0][0], unit.gang),)
        gpus = placements.get(unit.rows[0], unit.gpus) if unit.granted else unit.gpus or unit.last
        for row in unit.rows:
            notes.home[keys[row]] = home
            notes.packs.pop(keys[row], None)
            if gpus:
                notes.last[keys[row]] = gpus
        if unit.packed:
            notes.packs[keys[unit.rows[0]]] = [keys[row] for row in unit.rows]
    free = scene.floor.free
    notes.idle = free.copy() if scene.turn else [min(pair) for pair in zip(notes.idle, free, strict=True)]
