"""What the policies of the Gavel family have in common: they plan shares, and one mechanism carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.gavel.shares import ROUND_S, Style, decide_by_shares
from fairway.policies.gavel.situation import Shares, Situation


@dataclass(frozen=True)
class SharePolicy:
    """A policy that answers with fractions of time, and leaves the rounds to the mechanism.

    `published` has plans made and carried out as in the public simulators (see `shares.Style`).
    """

    published: bool = False

    name: ClassVar[str] = ""
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = ROUND_S

    def plan(self, situation: Situation) -> Shares:
        """The fractions of time that each job is to have."""
        raise NotImplementedError

    @property
    def style(self) -> Style:
        """How the mechanism carries the plan out."""
        return Style(published=self.published)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Plan if it is time to, then choose who runs in this round."""
        return decide_by_shares(snapshot, self.plan, self.style)


Heterogeneity = Literal["aware", "agnostic"]


def usable(situation: Situation) -> Floats:
    """1 where a job can run now, else 0: what an agnostic policy sees of speeds."""
    return np.asarray((situation.rates > 0).astype(np.float64))


def equal_split(situation: Situation) -> Floats:
    """Every job alone on its n-th of each type, time-sliced where its gang is larger, never more than all the time."""
    jobs = len(situation.gangs)
    split = situation.capacity[None, :] / (jobs * situation.gangs[:, None])
    return np.asarray(split / np.maximum(split.sum(axis=1, keepdims=True), 1.0))


def equal_time(situation: Situation) -> Shares:
    """The same time for every job, whatever its gang: as many jobs at a time as there are GPUs."""
    jobs, gpus = len(situation.gangs), float(situation.capacity.sum())
    time = min(1.0, gpus / jobs) * situation.capacity / max(gpus, 1.0)
    return Shares(np.tile(time, (jobs, 1)))
