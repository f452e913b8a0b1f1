"""Uses of GPUs for which no job waits: packs are taken apart, gangs brought together, jobs moved to faster GPUs, and
elastic jobs grow."""

from __future__ import annotations

from fairway.policies.gandiva.scene import GandivaScene
from fairway.policies.gandiva.units import Unit


def revert_moves(scene: GandivaScene) -> None:
    """Send back jobs whose move did not pay, if their old GPUs are still free."""
    for unit, home in scene.reverts:
        if unit.granted and unit.stays and scene.floor.fits(home):
            scene.move(unit, home)


def take_apart(scene: GandivaScene) -> None:
    """Give guests GPUs of their own."""
    for unit in list(scene.active.values()):
        while unit.packed and unit.stays and not unit.fixed and scene.held[unit.rows[-1]]:
            home = next((found for kind in scene.kinds(unit) if (found := scene.floor.fit(unit.gang, kind))), ())
            if not home:
                break
            alone = scene.split(unit, unit.rows[-1])
            scene.rehome(alone, home)
            scene.grant(alone)


def _may_move(scene: GandivaScene, unit: Unit) -> bool:
    return unit.stays and not unit.fixed and not scene.rests(unit)


def _try_move(scene: GandivaScene, unit: Unit, home: tuple[tuple[int, int], ...]) -> None:
    """Move a unit and note its rate before, so that the move can be judged."""
    if not unit.packed:
        before = [number for pair in unit.home for number in pair]
        rate = scene.rates[unit.rows[0]]
        scene.notes.moves[scene.key(unit)] = [scene.now_s, rate, scene.kind(unit), *before]
    scene.move(unit, home)


def bring_together(scene: GandivaScene) -> None:
    """Move gangs that use more nodes than they need onto fewer."""
    floor = scene.floor
    for unit in scene.active.values():
        if len(unit.home) > 1 and _may_move(scene, unit) and floor.is_spread(unit.home, unit.size):
            floor.give(unit.home)
            home = floor.fit(unit.size, scene.kind(unit))
            floor.take(unit.home)
            if home:
                _try_move(scene, unit, home)


def use_faster_gpus(scene: GandivaScene) -> None:
    """Move jobs to free GPUs of a type that is said to be faster, unless jobs of their kind were seen to gain nothing
    there."""
    if len(scene.hint) == 1 or not any(scene.floor.total):
        return
    for unit in scene.active.values():
        if unit.packed or unit.size != unit.gang or not _may_move(scene, unit):
            continue
        here = scene.kind(unit)
        for kind in scene.kinds(unit):
            if scene.hint[kind] <= scene.hint[here]:
                break
            seen = scene.notes.solo.get(f"{scene.kind_of_job(unit.rows[0])}|{unit.gang}|{kind}")
            home = scene.floor.fit(unit.gang, kind)
            if home and (not seen or seen > scene.rates[unit.rows[0]]):
                _try_move(scene, unit, home)
                break


def grow(scene: GandivaScene) -> None:
    """Let elastic jobs double into GPUs of their node that have been idle for a quantum."""
    floor, most = scene.floor, scene.snapshot.gpus_max
    for unit in scene.active.values():
        if not _may_move(scene, unit) or unit.packed or len(unit.home) > 1:
            continue
        limit = int(most[unit.rows[0]])
        key, node = scene.key(unit), unit.home[0][0]
        spare = min(floor.free[node], scene.notes.idle[node])
        size = min(limit, 2 * unit.size, unit.size + spare)
        if size > unit.size and key not in scene.notes.growth:
            scene.notes.growth[key] = [scene.now_s, unit.size, scene.rates[unit.rows[0]]]
            floor.give(unit.home)
            scene.resize(unit, size)
            floor.take(unit.home)


def look_ahead(scene: GandivaScene) -> None:
    """Ask to be woken at the end of a quantum while a unit waits or something can still be improved."""
    notes, floor = scene.notes, scene.floor
    if scene.waiting or notes.trials or notes.moves or notes.growth:
        scene.ask_again(scene.now_s)
        return
    if not any(floor.total):
        return
    most = scene.snapshot.gpus_max.tolist()
    for unit in scene.active.values():
        spread = len(unit.home) > 1 and floor.is_spread(unit.home, unit.size)
        larger = scene.knobs.grow and unit.size < most[unit.rows[0]] and floor.free[unit.home[0][0]] > 0
        apart = unit.packed and any(floor.total[kind] >= unit.gang for kind in scene.kinds(unit))
        if apart or (scene.knobs.migrate and (spread or _faster(scene, unit))) or larger:
            scene.ask_again(notes.rest.get(scene.key(unit), scene.now_s))


def _faster(scene: GandivaScene, unit: Unit) -> bool:
    """Whether a faster type of GPU has room for a job, and the job is not known to gain nothing there."""
    if len(scene.hint) == 1 or unit.packed:
        return False
    here = scene.kind(unit)
    for kind in scene.kinds(unit):
        if scene.hint[kind] > scene.hint[here] and scene.floor.total[kind] >= unit.gang:
            return True
    return False
