"""Patience has an end: GPUs are kept clear for a unit that new jobs keep from its turn.

A new job takes free GPUs and may not be stopped for a while. So while short jobs keep coming, a wide gang may never
find, at the end of a quantum, that all GPUs of its home can be taken. Once this has happened a few times in a row to a
unit that is first to wait, no other unit is started in its home until it runs.
"""

from __future__ import annotations

from fairway.policies.gandiva.scene import GandivaScene
from fairway.policies.gandiva.units import Unit


def is_kept_clear_for(scene: GandivaScene, unit: Unit) -> bool:
    """Whether a waiting unit has been passed over so often that its home is kept clear."""
    blocked = scene.notes.blocked
    return bool(blocked) and bool(unit.home) and blocked.get(scene.key(unit), 0.0) > scene.knobs.patience - 1e-6


def keep_clear(scene: GandivaScene) -> None:
    """Claim the free GPUs in the homes of such units. Those that have waited longest come first."""
    for unit in scene.waiting if scene.notes.blocked else ():
        hold(scene, unit)


def hold(scene: GandivaScene, unit: Unit) -> None:
    """Claim what is free of a unit's home, so that no other unit gets it, if the home is kept clear."""
    if is_kept_clear_for(scene, unit):
        free = scene.floor.free
        scene.holds[unit] = tuple((node, min(free[node], count)) for node, count in unit.home)
        scene.floor.take(scene.holds[unit])


def release(scene: GandivaScene, unit: Unit) -> bool:
    """Give back what was kept clear for a unit, so that it can claim it; False if nothing was."""
    held = scene.holds.pop(unit, None)
    if held is not None:
        scene.floor.give(held)
    return held is not None


def closed_nodes(scene: GandivaScene) -> set[int]:
    """The nodes on which no unit takes a turn before the one for which they are kept clear."""
    return {node for held in scene.holds.values() for node, _ in held}


def _weight_of_a_turn(scene: GandivaScene) -> float:
    """1, or less if turns are shorter than the protection of fresh starts, which then block several turns."""
    rows, snapshot = scene.snapshot.protected_rows, scene.snapshot
    protection_s = float((snapshot.protected_until_s[rows] - snapshot.since_s[rows]).max()) if len(rows) else 0.0
    return min(1.0, scene.knobs.quantum_s / protection_s) if protection_s > 0 else 1.0


class Heads:
    """Finds the heads of the queue while turns are taken: the units that are first to want the GPUs of their nodes."""

    def __init__(self, scene: GandivaScene) -> None:
        self._scene = scene
        self._seen: set[int] = set()
        self._closed = closed_nodes(scene)
        self._weight = _weight_of_a_turn(scene)

    def may_go_ahead(self, unit: Unit) -> bool:
        """Whether no node of a unit's home is kept clear for another waiting unit."""
        if not self._closed or is_kept_clear_for(self._scene, unit):
            return True
        return self._closed.isdisjoint(node for node, _ in unit.home)

    def served(self, unit: Unit) -> None:
        """A unit takes its turn. What was kept clear for it is released."""
        self._seen.update(node for node, _ in unit.home)
        if self._closed:
            self._closed = closed_nodes(self._scene)

    def passed_over(self, unit: Unit) -> None:
        """A unit gets nothing. If no unit before it took a turn on its nodes, fresh starts are in its way."""
        nodes = {node for node, _ in unit.home}
        if self._seen.isdisjoint(nodes):
            blocked, key = self._scene.notes.blocked, self._scene.key(unit)
            blocked[key] = blocked.get(key, 0.0) + self._weight
        self._seen |= nodes
        if is_kept_clear_for(self._scene, unit):
            hold(self._scene, unit)
            self._closed |= nodes
