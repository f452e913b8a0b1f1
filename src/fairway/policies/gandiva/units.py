"""What takes turns on GPUs, and what the policy remembers about it from one decision to the next.

A *unit* is a job, or a pack of jobs of equal gang size that share the same GPUs and are suspended and resumed together.
Its *home* says on how many GPUs of which nodes it runs. If the homes of several units overlap, they take turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fairway.core.snapshot import Snapshot

FEW = 100
Home: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a node and how many of its GPUs."""


class Unit:
    """Jobs that run together. `rows` are their rows, the host's first; `gang` is what each of them asks for.

    `size` is how many GPUs the unit has when it runs: its gang, or more if it has grown. `gpus` are those that it holds
    now, `last` those that it held most recently. `since_s` is since when it has run or waited. `fixed` units have just
    started and stay as they are. `granted` and `stays` are the outcome: whether it runs, and whether it keeps the GPUs
    that it holds. A unit that is `out` runs but has lost its place in a pack; one that has `moved` has a new home.
    """

    gpus: tuple[int, ...] = ()
    fixed = granted = stays = out = moved = False

    def __init__(self, row: int, gang: int, home: Home, last: tuple[int, ...], since_s: float) -> None:
        self.rows = [row]
        self.gang = self.size = gang
        self.home = home
        self.last = last
        self.since_s = since_s

    def hold(self, gpus: tuple[int, ...]) -> None:
        """The unit runs on these GPUs now."""
        self.gpus = self.last = gpus
        self.size = len(gpus)
        self.stays = True

    @property
    def packed(self) -> bool:
        """Whether several jobs share its GPUs."""
        return len(self.rows) > 1


class GandivaNotes:
    """The policy's memory: plain values under string keys. Jobs are named by their numbers.

    `alone` is a GPU type, a batch size and the rate that a job was seen to have alone with these; `solo` is the rate of
    its kind of job. `pairs` are the results of packing two kinds of jobs, and until when the pair shall not be tried
    again; `bans` are the same for two jobs. `trials`, `moves` and `growth` are changes whose benefit is not measured
    yet. `blocked` counts the turns that a job at the head of the queue missed because others had just started.
    """

    def __init__(self, memory: Mapping[str, Any], nodes: int) -> None:
        self.home: dict[str, Home] = dict(memory.get("home", {}))
        self.last: dict[str, tuple[int, ...]] = dict(memory.get("last", {}))
        self.packs: dict[str, list[str]] = dict(memory.get("packs", {}))
        self.alone: dict[str, list[float]] = dict(memory.get("alone", {}))
        self.solo: dict[str, float] = dict(memory.get("solo", {}))
        self.pairs: dict[str, list[float]] = dict(memory.get("pairs", {}))
        self.bans: dict[str, float] = dict(memory.get("bans", {}))
        self.trials: dict[str, list[float]] = dict(memory.get("trials", {}))
        self.moves: dict[str, list[Any]] = dict(memory.get("moves", {}))
        self.growth: dict[str, list[float]] = dict(memory.get("growth", {}))
        self.rest: dict[str, float] = dict(memory.get("rest", {}))
        self.blocked: dict[str, float] = dict(memory.get("blocked", {}))
        self.affinity = _of_nodes(memory.get("affinity", ()), nodes)
        self.idle = _of_nodes(memory.get("idle", ()), nodes)
        self.due_s: float | None = memory.get("due_s")

    def plain(self, jobs: Mapping[str, int], now_s: float) -> dict[str, Any]:
        """What to remember: little about jobs that have left, and no bans that are over."""
        about: dict[str, Any] = {"solo": self.solo, "pairs": self.pairs, "affinity": self.affinity, "idle": self.idle}
        for name in ("home", "last", "packs", "alone", "trials", "moves", "growth", "blocked"):
            table = getattr(self, name)
            # Long tables are only cleared when they must hold entries of jobs that have left.
            if len(table) > len(jobs) or len(table) < FEW or name == "packs":
                table = {key: value for key, value in table.items() if key in jobs}
            about[name] = table
        about["bans"] = {key: end_s for key, end_s in self.bans.items() if end_s > now_s and _active(key, jobs)}
        about["rest"] = {key: end_s for key, end_s in self.rest.items() if end_s > now_s and key in jobs}
        about["due_s"] = self.due_s
        return about

    def ban(self, a: int, b: int, until_s: float) -> None:
        """Do not pack two jobs together before an instant."""
        self.bans[pair_of(a, b)] = until_s


def pair_of(a: int, b: int) -> str:
    """The name of a pair of jobs, in either order."""
    return f"{a}+{b}" if a < b else f"{b}+{a}"


def _active(pair: str, jobs: Mapping[str, int]) -> bool:
    return all(key in jobs for key in pair.split("+"))


def home_of(gpus: tuple[int, ...], node_of_gpu: tuple[int, ...]) -> Home:
    """Where concrete GPUs are."""
    if len(gpus) == 1:
        return ((node_of_gpu[gpus[0]], 1),)
    counts: dict[int, int] = {}
    for gpu in gpus:
        node = node_of_gpu[gpu]
        counts[node] = counts.get(node, 0) + 1
    return tuple(sorted(counts.items()))


def read_units(
    snapshot: Snapshot, notes: GandivaNotes, row_of: Mapping[str, int], sizes: Sequence[int]
) -> tuple[list[Unit], list[tuple[int, int]]]:
    """All units in the order of submission, and the pairs of rows that the engine refused to run together."""
    held = snapshot.held.tolist()
    guests, refused = _guests(snapshot, notes, row_of, held)
    columns = held, snapshot.gpus.tolist(), np.where(snapshot.running, snapshot.since_s, snapshot.idle_since_s).tolist()
    node_of_gpu, homes, lasts = snapshot.cluster.node_of_gpu, notes.home, notes.last
    short = bool(snapshot.down_nodes or snapshot.withheld_gpus)
    units: list[Unit] = []
    by_row: dict[int, Unit] = {}
    for (key, row), holds, gang, since_s in zip(row_of.items(), *columns, strict=True):
        if row in guests:
            continue
        if holds:
            gpus = snapshot.gpus_held(row)
            unit = Unit(row, gang, home_of(gpus, node_of_gpu), gpus, since_s)
            unit.hold(gpus)
        else:
            home = homes.get(key, ())
            if not isinstance(home, tuple):
                home = homes[key] = tuple((node, count) for node, count in home)
            if short and any(sizes[node] < count for node, count in home):
                home = ()
            unit = Unit(row, gang, home, tuple(lasts.get(key, ())), since_s)
        units.append(unit)
        if guests:
            by_row[row] = unit
    for guest, host in guests.items():
        by_row[host].rows.append(guest)
    return units, refused


def _guests(
    snapshot: Snapshot, notes: GandivaNotes, row_of: Mapping[str, int], held: list[int]
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Which rows belong to the unit of another row: jobs that run together now, or were suspended together."""
    guests: dict[int, int] = {}
    host = snapshot.host
    for row in (host >= 0).nonzero()[0].tolist():
        guests[row] = row_of[str(int(host[row]))]
    refused: list[tuple[int, int]] = []
    for first, pack in notes.packs.items():
        # If a pack has lost its first job, its running jobs still share GPUs; the others part.
        if first not in row_of:
            continue
        rows = [row_of[job] for job in pack if job in row_of]
        running = [row for row in rows if held[row]]
        if not running:
            for row in rows[1:]:
                guests[row] = rows[0]
        elif len(running) < len(rows):
            refused += [(row, other) for row in rows if not held[row] for other in running]
    return guests, refused


def _of_nodes(known: Sequence[int], nodes: int) -> list[int]:
    """What is noted of each node; 0 for those that have joined since."""
    return [*known, *[0] * (nodes - len(known))]
