"""What a new kind of job keeps of its speed beside others, from a few measured pairs.

This is the throughput estimator of Gavel (Narayanan et al., OSDI 2020, section 6). Some kinds of jobs have been
measured in all pairs and serve as *references*. A new kind is measured beside a few of them; its row is appended to
their table and completed; it behaves like the reference whose row points in the same direction. Here a measured pair
gives two numbers, what the new job keeps and what its partner keeps, and both are part of the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.arrays import Bools, Floats
from fairway.models.completion import Completion, complete
from fairway.models.names import ProfileKey

Kept = Callable[[ProfileKey, ProfileKey, str], tuple[float, float] | None]
"""What two jobs keep of their speeds on a GPU type: zeros if they do not fit, None if unknown."""


class PairRow(NamedTuple):
    """One kind beside each reference on each GPU type: what it keeps, and what the other one keeps."""

    own: Floats
    other: Floats

    @property
    def joined(self) -> Floats:
        """Both as one long row."""
        return np.concatenate([self.own.ravel(), self.other.ravel()])

    @staticmethod
    def split(joined: Floats, types: int) -> PairRow:
        """The reverse of `joined`."""
        own, other = joined.reshape(2, types, -1)
        return PairRow(own, other)


@dataclass(frozen=True)
class ReferenceTable:
    """Kinds that were measured with one another: `kept[a, t, b]` is what kind a keeps beside b on GPU type t.

    NaN if a pair was not measured; 0 if it was and did not fit in memory.
    """

    kinds: tuple[ProfileKey, ...]
    gpu_types: tuple[str, ...]
    kept: Floats

    @staticmethod
    def of(kinds: Sequence[ProfileKey], gpu_types: Sequence[str], kept: Kept) -> ReferenceTable:
        """Ask about every pair."""
        table = np.full((len(kinds), len(gpu_types), len(kinds)), np.nan)
        for t, gpu_type in enumerate(gpu_types):
            for a, one in enumerate(kinds):
                for b in range(a, len(kinds)):
                    pair = kept(one, kinds[b], gpu_type)
                    if pair is not None:
                        table[a, t, b], table[b, t, a] = pair
        return ReferenceTable(tuple(kinds), tuple(gpu_types), table)

    def without(self, leave: Sequence[int]) -> ReferenceTable:
        """The table of the other kinds."""
        stay = [index for index in range(len(self.kinds)) if index not in set(leave)]
        kept = self.kept[np.ix_(stay, range(len(self.gpu_types)), stay)]
        return ReferenceTable(tuple(self.kinds[index] for index in stay), self.gpu_types, kept)

    def row(self, kind: int, beside: Sequence[int]) -> PairRow:
        """One kind beside some others."""
        return PairRow(self.kept[kind][:, beside], self.kept[beside, :, kind].T)

    @property
    def joined(self) -> Floats:
        """The rows of all kinds, each with what it keeps and what the others keep."""
        own = self.kept.reshape(len(self.kinds), -1)
        return np.hstack([own, self.kept.transpose(2, 1, 0).reshape(len(self.kinds), -1)])


class Estimate(NamedTuple):
    """A new kind's row in three ways, and the reference that it resembles most.

    `nearest` is the row of that reference, as published; `completed` what the factorisation says; `mixed` their mean,
    which errs less than either.
    """

    reference: int
    nearest: PairRow
    completed: PairRow
    mixed: PairRow


def estimate_row(table: ReferenceTable, measured: PairRow, how: Completion | None = None) -> Estimate:
    """Estimate a new kind from its measurements (NaN elsewhere). Measured entries come back as they are."""
    types = len(table.gpu_types)
    reference, new = table.joined, measured.joined
    values = np.vstack([reference, new])
    filled = np.clip(complete(values, ~np.isnan(values), how), 0.0, 1.0)
    likeness = cosines(filled[:-1], filled[-1])
    nearest = int(np.argmax(likeness))
    known: Bools = ~np.isnan(new)
    like = np.where(known, new, filled[nearest])
    return Estimate(
        nearest,
        PairRow.split(like, types),
        PairRow.split(filled[-1], types),
        PairRow.split((like + filled[-1]) / 2, types),
    )


def cosines(rows: Floats, row: Floats) -> Floats:
    """How alike in direction each of some rows is to one: 1 for the same direction, 0 for nothing in common."""
    lengths = np.sqrt(portable.dots(rows, rows)) * math.sqrt(portable.dot(row, row))
    alike: Floats = portable.dots(rows, row) / np.where(lengths > 0, lengths, 1.0)
    return alike
