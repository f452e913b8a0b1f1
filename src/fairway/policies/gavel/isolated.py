"""Equal division of the cluster: every job has its n-th of each GPU type and nothing is traded.

The baseline that sharing incentive is measured against (Gavel, OSDI 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairway.policies.gavel.base import PlanningPolicy
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import Throughputs
from fairway.policies.registry import register


@register
@dataclass(frozen=True)
class Isolated(PlanningPolicy):
    """Every job gets its n-th of each GPU type in turns, whatever its speed there.

    Knows: gang sizes, the number of jobs. Preempts. Nothing is traded, so the knobs of the family change nothing here.
    """

    name: ClassVar[str] = "isolated"

    def plan(self, situation: Situation) -> Shares:
        """The equal split."""
        return Shares(Throughputs.alone(situation.rates, situation.gangs, situation.capacity).even())
