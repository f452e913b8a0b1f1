"""Gandiva-fair as in Shockwave's simulator (NSDI 2023): equal time for every job, whatever its gang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.policies.gandiva_fair import GandivaFair
from fairway.policies.gavel.shares import Style, decide_by_shares
from fairway.policies.gavel.situation import Shares, Situation
from fairway.published.gavel import shuffled


@dataclass(frozen=True)
class PublishedGandivaFair(GandivaFair):
    """Gandiva-fair by shares of time."""

    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def decide(self, snapshot: Snapshot) -> Decision:
        """Plan shares if a plan is due, then choose the jobs that run in this round."""
        return decide_by_shares(snapshot, equal_time, Style(published=True, order=shuffled))


def equal_time(situation: Situation) -> Shares:
    """The same time for every job, whatever its gang: as many jobs at a time as there are GPUs."""
    jobs, gpus = len(situation.gangs), float(situation.capacity.sum())
    time = min(1.0, gpus / jobs) * situation.capacity / max(gpus, 1.0)
    return Shares(np.tile(time, (jobs, 1)))
