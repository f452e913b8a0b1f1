"""Which jobs may share GPUs, and how fast they are then."""

from __future__ import annotations

from fairway.core.arrays import Floats
from fairway.policies.gavel.situation import Situation
from fairway.policies.gavel.throughputs import Throughputs


def paired(situation: Situation, rates: Floats) -> Throughputs:
    """Speeds alone and in pairs."""
    return Throughputs.alone(rates, situation.gangs, situation.capacity)
