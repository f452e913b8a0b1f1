"""Training in regimes: stretches of the work at different batch sizes and so at different speeds.

The word is Shockwave's (NSDI 2023). Progress is a fraction of the whole work; a regime ends where its `until` is
reached, and the next one begins right there.
"""

from __future__ import annotations

from fairway.core.job import Regime

TOLERANCE = 1e-12
"""Progress this close to a boundary counts as having reached it; otherwise rounding could stop a simulator for ever."""

_WHOLE = (Regime(1.0),)


def regime_at(regimes: tuple[Regime, ...], progress: float) -> Regime:
    """The regime in which work is done at this progress; a job without regimes has a single one of speed 1."""
    regimes = regimes or _WHOLE
    return next((regime for regime in regimes if progress < regime.until - TOLERANCE), regimes[-1])
