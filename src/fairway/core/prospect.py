"""What is known about a job that changes its batch size while it trains: what may come, and what has been.

A training script announces how many epochs it makes and which batch sizes it may go through, in their order. It does
not announce when it will change: that depends on the training, and a scheduler sees a change when it happens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple


class Stage(NamedTuple):
    """A stretch of training at one batch size (0: unknown); `speeds` are epochs per second of the job on its own gang,
    by GPU type, and 0 where it cannot run."""

    batch_size: int
    speeds: tuple[float, ...]


class Prospect(NamedTuple):
    """What a job's owner announces about its training: the number of epochs, and the stages in their order."""

    epochs: float
    stages: tuple[Stage, ...]

    def on(self, kinds: Sequence[int]) -> Prospect:
        """The same on a cluster that has only some of the GPU types, in another order."""
        stages = (Stage(batch_size, tuple(speeds[kind] for kind in kinds)) for batch_size, speeds in self.stages)
        return Prospect(self.epochs, tuple(stages))

    def at(self, speeds: Sequence[float], known: Sequence[float]) -> Prospect:
        """The same for a job of other `speeds` than those that were known, on these GPU types and maybe more."""
        kind = next((kind for kind, speed in enumerate(known) if speed > 0), None)
        if kind is None:
            return self
        stages = [
            Stage(batch_size, tuple(there[kind] / known[kind] * speed for speed in speeds))
            for batch_size, there in self.stages
        ]
        return Prospect(self.epochs, tuple(stages))

    def plain(self) -> list[Any]:
        """The prospect as JSON values."""
        return [self.epochs, [list(stage) for stage in self.stages]]

    @staticmethod
    def from_plain(values: Sequence[Any]) -> Prospect:
        """Read what `plain` gave."""
        epochs, stages = values
        return Prospect(epochs, tuple(Stage(batch_size, tuple(speeds)) for batch_size, speeds in stages))


class Spell(NamedTuple):
    """How many epochs a job trained at one batch size before it changed, or until now."""

    batch_size: int
    epochs: float


class Training(NamedTuple):
    """A job's prospect together with what has been seen: the spells so far, the last of which goes on.

    `speed` is how many epochs per second it makes now; 0 while it waits.
    """

    epochs: float
    stages: tuple[Stage, ...]
    spells: tuple[Spell, ...]
    speed: float = 0.0

    @property
    def done(self) -> float:
        """Epochs trained so far."""
        return math.fsum(spell.epochs for spell in self.spells)


class Entry(NamedTuple):
    """A regime that a job has entered: its batch size, and what part of the whole work was done by then."""

    batch_size: int
    since: float


def entered(entries: tuple[Entry, ...], batch_size: int, since: float) -> tuple[Entry, ...]:
    """The regimes of a job after it was seen to enter one. Those that a fall-back has undone are forgotten."""
    kept = tuple(entry for entry in entries if entry.since <= since)
    if kept and kept[-1].batch_size == batch_size:
        return kept
    return (*kept, Entry(batch_size, since))


def spells_of(entries: tuple[Entry, ...], first_batch: int, done: float, epochs: float) -> tuple[Spell, ...]:
    """Epochs by regime after a part of the work is `done`; a job begins with its first batch size.

    A regime that was entered a second time, after a fall-back into it, still counts as one spell.
    """
    starts = list(entries[:1] if entries and entries[0].since <= 0 else (Entry(first_batch, 0.0),))
    starts += [entry for before, entry in pairwise((*starts, *entries)) if entry.batch_size != before.batch_size]
    ends = [*(entry.since for entry in starts[1:]), max(done, starts[-1].since)]
    return tuple(Spell(entry.batch_size, (end - entry.since) * epochs) for entry, end in zip(starts, ends, strict=True))
