"""Which units run: free GPUs are filled at once, and at the end of a quantum waiting units take the place of those
that have run longest."""

from __future__ import annotations

import math
from operator import attrgetter

from fairway.policies.gandiva.patience import Heads, hold, is_kept_clear_for, keep_clear, release
from fairway.policies.gandiva.scene import EARLY_S, GandivaScene
from fairway.policies.gandiva.units import Home, Unit


def keep_running(scene: GandivaScene, parted: list[Unit]) -> None:
    """Running units go on for now; the others wait. Those that have waited longest come first."""
    for unit in scene.running:
        scene.grant(unit)
        if unit.size > unit.gang and not unit.fixed:
            scene.grown.append(unit)
    scene.waiting = [unit for unit in scene.units if not unit.gpus] + parted
    scene.waiting.sort(key=attrgetter("since_s"))
    keep_clear(scene)


def fill(scene: GandivaScene) -> None:
    """Give free GPUs to waiting units. A unit that finds none gets a home that it shares with others."""
    floor, left = scene.floor, []
    most = _most_free(scene)
    for unit in scene.waiting:
        held = bool(scene.holds) and release(scene, unit)
        if held:
            most = _most_free(scene)
        if most >= unit.gang and _find_room(scene, unit):
            most = _most_free(scene)
            continue
        if held:
            hold(scene, unit)
            most = _most_free(scene)
        if not unit.home:
            home = floor.share(unit.gang, scene.kinds(unit))
            if home:
                scene.rehome(unit, home)
        left.append(unit)
    scene.waiting = left


def _most_free(scene: GandivaScene) -> int:
    """The largest gang that could find room, if all free GPUs and all that units have grown by were of use to it."""
    return max(scene.floor.total) + sum(unit.size - unit.gang for unit in scene.grown)


def _find_room(scene: GandivaScene, unit: Unit) -> bool:
    """Start a unit if enough GPUs are free: at home, on few nodes elsewhere, where others can shrink or move out of the
    way, or else wherever they are."""
    floor = scene.floor
    if unit.home and floor.fits(unit.home):
        scene.grant(unit)
        return True
    kinds = scene.kinds(unit)
    home: Home = next((found for kind in kinds if (found := floor.fit(unit.gang, kind))), ())
    if not home and scene.grown:
        home = _reclaim(scene, unit, kinds)
    if not home and scene.knobs.migrate:
        home = _clear(scene, unit, kinds)
    home = home or next((found for kind in kinds if (found := floor.spread(unit.gang, kind))), ())
    if not home:
        return unit.packed and len(scene.hint) > 1 and _start_a_part(scene, unit)
    scene.rehome(unit, home)
    scene.grant(unit)
    return True


def _start_a_part(scene: GandivaScene, unit: Unit) -> bool:
    """Of a pack that finds no room, start the jobs for which there are GPUs that the others cannot use. Returns
    whether no job is left."""
    for row in unit.rows.copy():
        kinds = scene.kinds_of(row)
        home: Home = next((found for kind in kinds if (found := scene.floor.spread(unit.gang, kind))), ())
        if home:
            alone = scene.split(unit, row) if unit.packed else unit
            scene.rehome(alone, home)
            scene.grant(alone)
    return unit.granted


def _reclaim(scene: GandivaScene, unit: Unit, kinds: tuple[int, ...]) -> Home:
    """Shrink units that have grown, one after the other, until the gang fits."""
    for grown in [g for g in scene.grown if scene.kind(g) in kinds]:
        scene.grown.remove(grown)
        scene.floor.give(grown.home)
        scene.resize(grown, grown.gang)
        scene.floor.take(grown.home)
        scene.notes.growth.pop(scene.key(grown), None)
        home = scene.floor.fit(unit.gang, scene.kind(grown))
        if home:
            return home
    return ()


def movable_units(scene: GandivaScene) -> dict[int, list[Unit]]:
    """Running units on one node that may be moved, by node."""
    found: dict[int, list[Unit]] = {}
    for unit in scene.active.values():
        if unit.stays and not unit.fixed and len(unit.home) == 1 and not scene.rests(unit):
            found.setdefault(unit.home[0][0], []).append(unit)
    return found


def _clear(scene: GandivaScene, unit: Unit, kinds: tuple[int, ...]) -> Home:
    """Move a few units together so that a gang finds its GPUs on one node."""
    floor = scene.floor
    if unit.gang < 2 or all(floor.total[kind] < unit.gang for kind in kinds):
        return ()
    movable = movable_units(scene)
    for kind in kinds:
        node, moves = floor.cleared(unit.gang, kind, movable)
        for other, target in moves:
            scene.move(other, ((target, other.size),))
        if moves:
            return ((node, unit.gang),)
    return ()


def rotate(scene: GandivaScene) -> None:
    """A quantum has ended: waiting units take the GPUs of their homes from the units that have run longest."""
    runners: dict[int, list[Unit]] = {}
    for unit in scene.active.values():
        # A pack that a job has just joined still has its quantum before it.
        joined = not all(scene.held[row] for row in unit.rows)
        if unit.stays and not unit.fixed and not joined and _is_worth_a_switch(scene, unit):
            for node, _ in unit.home:
                runners.setdefault(node, []).append(unit)
    left: list[Unit] = []
    stopped: list[Unit] = []
    heads = Heads(scene)
    for unit in scene.waiting:
        victims = _take_turn(scene, unit, runners, heads) if unit.home and not unit.out else None
        if victims is None:
            left.append(unit)
            continue
        for victim in victims:
            scene.stop(victim)
            for node, _ in victim.home:
                runners[node].remove(victim)
        stopped += victims
        scene.grant(unit)
    scene.waiting = left + stopped


def _is_worth_a_switch(scene: GandivaScene, unit: Unit) -> bool:
    """Whether a unit has run long enough against what it costs to stop it and to bring it back."""
    if not scene.knobs.overhead:
        return True
    cost_s = max(scene.snapshot.switch_cost_s(row) for row in unit.rows)
    return (scene.now_s - unit.since_s) * scene.knobs.overhead >= cost_s - EARLY_S


def _take_turn(scene: GandivaScene, unit: Unit, runners: dict[int, list[Unit]], heads: Heads) -> list[Unit] | None:
    """The units whose GPUs a unit takes; None if it has to go on waiting."""
    if not heads.may_go_ahead(unit):
        return None
    release(scene, unit)
    victims = _victims(scene, unit, runners)
    if victims is None:
        heads.passed_over(unit)
    else:
        heads.served(unit)
    return victims


def _victims(scene: GandivaScene, unit: Unit, runners: dict[int, list[Unit]]) -> list[Unit] | None:
    """The units that have run longest on the nodes of a unit's home, as many as must go; None if that is not enough.

    Of units that were started together, one that holds the GPUs on which the waiting unit can resume goes first, then
    the youngest.
    """
    chosen: list[Unit] = []
    freed: dict[int, int] = {}
    mine = set(unit.last)
    for node, count in unit.home:
        need = count - scene.floor.free[node] - freed.get(node, 0)
        if need <= 0:
            continue
        for other in sorted(runners.get(node, ()), key=lambda o: (o.since_s, mine.isdisjoint(o.gpus), -o.rows[0])):
            if other not in chosen:
                chosen.append(other)
                for place, given in other.home:
                    freed[place] = freed.get(place, 0) + given
                need -= dict(other.home)[node]
                if need <= 0:
                    break
        if need > 0:
            return None
    return chosen


def balance(scene: GandivaScene, most: int = 64) -> None:
    """Give waiting units on crowded nodes a home where fewer units take turns, a few at a time. They resume there."""
    floor = scene.floor
    lowest = min((floor.load[node] / floor.sizes[node] for nodes in floor.nodes for node in nodes), default=math.inf)
    for unit in scene.waiting:
        if len(unit.home) != 1 or is_kept_clear_for(scene, unit):
            continue
        node = unit.home[0][0]
        crowd = floor.load[node] / floor.sizes[node]
        if crowd <= lowest + unit.gang / floor.sizes[node]:
            continue
        home = floor.share(unit.gang, scene.kinds(unit))
        if len(home) == 1 and home[0][0] != node:
            target = home[0][0]
            if (floor.load[target] + unit.gang) / floor.sizes[target] < crowd - 1e-9:
                scene.rehome(unit, home)
        most -= 1
        if not most:
            return
