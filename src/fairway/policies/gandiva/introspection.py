"""Try, measure, keep or revert: packing, moves and growth are judged by the work rates that jobs are seen to have.
Pairs of which live jobs were measured before are tried only if that paid.

A rate is taken relative to the rate of the job alone on the same GPU type. Two jobs that take turns make 1 together, so
a pack must make clearly more than that.
"""

from __future__ import annotations

import math

from fairway.core import portable
from fairway.policies.gandiva.patience import closed_nodes
from fairway.policies.gandiva.scene import EARLY_S, GandivaScene
from fairway.policies.gandiva.units import Unit, pair_of

ALIKE = 0.1
"""If the rates of jobs of one kind differ by more than this fraction, the kind says nothing about the next job."""
UNTRIED = 2.0
"""What an untried pair is expected to make: every pair of kinds gets a trial."""


def observe(scene: GandivaScene) -> None:
    """Note the rates of jobs that run alone, and which jobs do not fit beside each other."""
    notes = scene.notes
    for unit in scene.running:
        # A job on trial beside a job that has left is alone now, or the host of others.
        notes.trials.pop(scene.key(unit), None)
        if not unit.packed and unit.size == unit.gang and not scene.floor.is_spread(unit.home, unit.gang):
            row, kind = unit.rows[0], scene.kind(unit)
            rate, key = scene.rates[row], scene.keys[row]
            seen_now = [kind, scene.batch_sizes[row], rate]
            seen = scene.snapshot.measured.is_seen(int(scene.snapshot.jobs[row]))
            if rate > 0 and seen and notes.alone.get(key) != seen_now:
                notes.alone[key] = seen_now
                name = f"{scene.kind_of_job(row)}|{unit.gang}|{kind}"
                known = notes.solo.get(name, rate)
                notes.solo[name] = rate if abs(rate - known) <= ALIKE * known else 0.0
    jobs = scene.snapshot.jobs
    for guest, host in scene.refused:
        notes.ban(int(jobs[guest]), int(jobs[host]), math.inf)
        pair = scene.kind_of_job(guest), scene.kind_of_job(host)
        name = _pair_name(*pair, int(scene.snapshot.gpus[guest]), int(scene.snapshot.gpu_type[host]))
        notes.pairs[name] = [0.0, scene.now_s + scene.knobs.cooldown_s]


def rate_alone(scene: GandivaScene, row: int, gang: int, kind: int) -> float:
    """The rate of a job alone on a GPU type, as seen for it or for its kind; 0 if it was never seen."""
    if not scene.snapshot.measured.is_seen(int(scene.snapshot.jobs[row])):
        return 0.0
    known = scene.notes.alone.get(scene.keys[row])
    if known is not None and known[0] == kind and known[1] == scene.batch_sizes[row]:
        return known[2]
    return scene.notes.solo.get(f"{scene.kind_of_job(row)}|{gang}|{kind}", 0.0)


def worth(scene: GandivaScene, unit: Unit) -> float:
    """What a unit makes per second, where the rate of each job alone counts 1; NaN if one is unknown."""
    total = 0.0
    for row in unit.rows:
        alone = rate_alone(scene, row, unit.gang, scene.kind(unit))
        total += scene.rates[row] / alone if alone > 0 else math.nan
    return total


def pays(value: float, bar: float, hysteresis: float) -> bool:
    """Whether a pack makes clearly more than its parts make by taking turns."""
    return value > bar * (1 + hysteresis)


def judge_packs(scene: GandivaScene) -> list[Unit]:
    """End the trials that have lasted long enough. Returns the jobs whose packs do not pay (any more)."""
    notes, knobs, keys = scene.notes, scene.knobs, scene.keys
    parted: list[Unit] = []
    for unit in scene.running:
        if not unit.packed or unit.fixed:
            continue
        guest = next((row for row in unit.rows if keys[row] in notes.trials), unit.rows[-1])
        trial = notes.trials.get(keys[guest])
        if trial and scene.now_s < trial[0] + knobs.trial_s - EARLY_S:
            continue
        value = worth(scene, unit)
        if math.isnan(value) and not trial:
            continue
        good = pays(value, trial[1], knobs.hysteresis) if trial else portable.rounded(value) > 1.0
        notes.trials.pop(keys[guest], None)
        until_s = 0.0 if good else scene.now_s + knobs.cooldown_s
        if len(unit.rows) == 2 and (trial or not good) and not math.isnan(value):
            kinds = scene.kind_of_job(unit.rows[0]), scene.kind_of_job(guest)
            notes.pairs[_pair_name(*kinds, unit.gang, scene.kind(unit))] = [value, until_s]
        if not good:
            jobs = scene.snapshot.jobs
            for row in unit.rows:
                if row != guest:
                    notes.ban(int(jobs[row]), int(jobs[guest]), until_s)
            parted.append(scene.split(unit, guest))
    return parted


def _pair_name(a: str, b: str, gang: int, kind: int) -> str:
    """The name of a pair of kinds of jobs on a GPU type."""
    return f"{min(a, b)}~{max(a, b)}|{gang}|{kind}"


def join(scene: GandivaScene) -> None:
    """Put waiting jobs beside running ones of equal gang size. The pairs that are known to make most come first."""
    knobs = scene.knobs
    if knobs.pack < 2 or not scene.waiting:
        return
    hosts = _hosts(scene)
    left: list[Unit] = []
    ranked: dict[tuple[int, str], list[tuple[float, str, int]]] = {}
    for unit in scene.waiting:
        shelves = hosts.get(unit.gang) if hosts else None
        host = None
        if shelves and not unit.packed and not unit.out:
            name = scene.kind_of_job(unit.rows[0])
            order = ranked.get((unit.gang, name))
            if order is None:
                order = ranked[unit.gang, name] = _ranked(scene, unit, name, shelves)
            host = _partner(scene, unit, order, shelves)
            if not any(shelves.values()):
                del hosts[unit.gang]
        if host is None:
            left.append(unit)
            continue
        value = worth(scene, host) if len(host.rows) > 1 and all(scene.held[row] for row in host.rows) else 1.0
        scene.notes.trials[scene.key(unit)] = [scene.now_s, (value + 1.0) / 2]
        scene.join(unit, host)
    scene.waiting = left


def _hosts(scene: GandivaScene) -> dict[int, dict[tuple[str, int], list[Unit]]]:
    """Running units that may take one more job, by gang size, then by kind of job and GPU type; the first come last."""
    hosts: dict[int, dict[tuple[str, int], list[Unit]]] = {}
    closed = closed_nodes(scene)
    for unit in reversed(scene.active.values()):
        if len(unit.rows) >= scene.knobs.pack or unit.size != unit.gang:
            continue
        if any(scene.keys[row] in scene.notes.trials for row in unit.rows) or scene.floor.is_spread(
            unit.home, unit.gang
        ):
            continue
        # A guest would make its host a fresh start.
        if closed and not closed.isdisjoint(node for node, _ in unit.home):
            continue
        row, kind = unit.rows[0], scene.kind(unit)
        if rate_alone(scene, row, unit.gang, kind) > 0:
            shelf = hosts.setdefault(unit.gang, {}).setdefault((scene.kind_of_job(row), kind), [])
            shelf.append(unit)
    return hosts


def _ranked(
    scene: GandivaScene, unit: Unit, name: str, shelves: dict[tuple[str, int], list[Unit]]
) -> list[tuple[float, str, int]]:
    """The kinds of hosts for a kind of job, the best expected pair first."""
    order = []
    for other, kind in shelves:
        known = scene.notes.pairs.get(_pair_name(name, other, unit.gang, kind))
        if known is None:
            shelf = shelves[other, kind]
            value = _measured(scene, unit.rows[0], shelf[0].rows[0], kind) if shelf else None
            if value is None or pays(value, 1.0, scene.knobs.hysteresis):
                order.append((-portable.rounded(UNTRIED if value is None else value), other, kind))
        elif known[1] <= scene.now_s:
            order.append((-portable.rounded(known[0]), other, kind))
    return sorted(order)


def _measured(scene: GandivaScene, row: int, mate: int, kind: int) -> float | None:
    """What live jobs like these two were measured to make together before; None if they were not."""
    jobs = scene.snapshot.jobs
    factors = scene.snapshot.measured.factors(int(jobs[row]), int(jobs[mate]))
    return sum(factors[kind]) if factors and max(factors[kind]) > 0 else None


def _partner(
    scene: GandivaScene, unit: Unit, order: list[tuple[float, str, int]], shelves: dict[tuple[str, int], list[Unit]]
) -> Unit | None:
    """Take the best host for a job off its shelf."""
    row = unit.rows[0]
    kinds = scene.kinds(unit)
    for _, other, kind in order:
        shelf = shelves[other, kind]
        if not shelf or kind not in kinds or not rate_alone(scene, row, unit.gang, kind) > 0:
            continue
        for at in range(len(shelf) - 1, -1, -1):
            if _may_share(scene, row, shelf[at], kind):
                return shelf.pop(at)
    return None


def _may_share(scene: GandivaScene, row: int, host: Unit, kind: int) -> bool:
    """Whether memory suffices, as far as it is known, and no ban excludes the pair."""
    snapshot, bans = scene.snapshot, scene.notes.bans
    jobs, room = snapshot.jobs, snapshot.cluster.types[kind].memory_bytes
    if bans and any(bans.get(pair_of(int(jobs[row]), int(jobs[mate])), 0.0) > scene.now_s for mate in host.rows):
        return False
    needs = sum(snapshot.facts(mate).memory_bytes for mate in (row, *host.rows))
    return not needs > room > 0


def judge_moves(scene: GandivaScene) -> None:
    """Send back jobs that were moved and are slower now, or are on another GPU type and no faster."""
    notes = scene.notes
    for unit in scene.units if notes.moves else ():
        moved = notes.moves.get(scene.key(unit))
        if moved is None:
            continue
        started_s, rate, kind, *home = moved
        if unit.packed or not unit.gpus or unit.size != unit.gang:
            del notes.moves[scene.key(unit)]
        elif not unit.fixed and scene.now_s >= started_s + scene.knobs.trial_s - EARLY_S:
            del notes.moves[scene.key(unit)]
            now = scene.rates[unit.rows[0]]
            if now < rate or (now <= rate and kind != scene.kind(unit)):
                scene.reverts.append((unit, tuple(zip(home[::2], home[1::2], strict=True))))


def judge_growth(scene: GandivaScene) -> None:
    """Shrink jobs that have grown and gain little from it."""
    notes = scene.notes
    for unit in scene.units if notes.growth else ():
        grown = notes.growth.get(scene.key(unit))
        if grown is None or unit.fixed:
            continue
        started_s, size, rate = grown
        if not unit.gpus or unit.size <= size:
            del notes.growth[scene.key(unit)]
        elif scene.now_s >= started_s + scene.knobs.trial_s - EARLY_S:
            del notes.growth[scene.key(unit)]
            if not pays(scene.rates[unit.rows[0]], rate, scene.knobs.hysteresis):
                scene.resize(unit, int(size))
                notes.rest[scene.key(unit)] = scene.now_s + scene.knobs.cooldown_s
