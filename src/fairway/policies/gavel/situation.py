"""What a share-planning policy sees when it plans, and what it answers: fractions of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fairway.core.arrays import Floats, Ints
from fairway.core.pairing import Pairing
from fairway.core.snapshot import Snapshot

_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


class Shares(NamedTuple):
    """Fractions of wall-clock time. `x[row, kind]` is a job's alone; pairs of rows share GPUs for `pair_x[pair, kind]`.

    `notes` is what the policy wants to find in the next situation (plain values under text keys).
    """

    x: Floats
    pairs: Ints = _NO_PAIRS
    pair_x: Floats = np.zeros((0, 0))
    notes: Mapping[str, Any] = {}

    def by_row(self) -> Floats:
        """The time that each row shall run on each type, alone or in pairs."""
        total = self.x.copy()
        for side in (0, 1):
            np.add.at(total, self.pairs[:, side], self.pair_x.reshape(-1, total.shape[1]))
        return total


@dataclass(frozen=True)
class Situation:
    """The active jobs as an allocation problem, one entry per row of the snapshot.

    `previous` is what the last plan gave each row alone (0 if it is new), `notes` what that plan noted. `learned` is
    what a policy has learned about pairs, where it does not trust a profile.
    """

    snapshot: Snapshot
    previous: Floats
    notes: Mapping[str, Any] = field(default_factory=dict)
    learned: Pairing | None = None

    @cached_property
    def rates(self) -> Floats:
        """Steps per second, one row per job and one column per GPU type; 0 where a job cannot run now."""
        fits = self.gangs[:, None] <= self.capacity[None, :]
        return np.asarray(np.ascontiguousarray(self.snapshot.speeds.T) * fits)

    @property
    def pairing(self) -> Pairing:
        """How jobs run in pairs, as far as the policy knows."""
        return self.snapshot.pairing if self.learned is None else self.learned

    @cached_property
    def gangs(self) -> Floats:
        """How many GPUs each job takes while it runs."""
        return np.asarray(self.snapshot.gpus, dtype=np.float64)

    @cached_property
    def capacity(self) -> Floats:
        """GPUs that are up, by type."""
        return np.asarray(self.snapshot.capacity, dtype=np.float64)

    @cached_property
    def weights(self) -> Floats:
        """The owners' weights; a weight of 0 counts as a very small one."""
        return np.asarray(np.maximum(self.snapshot.weight, 1e-6))

    @cached_property
    def steps_left(self) -> Floats:
        """What each job still has to do, in the units of its rates (an oracle's knowledge)."""
        return np.asarray(np.maximum(self.snapshot.oracle.work_left, 1e-9))

    @cached_property
    def waited_s(self) -> Floats:
        """How long ago each job was submitted."""
        return np.asarray(self.snapshot.now_s - self.snapshot.submitted_s)
