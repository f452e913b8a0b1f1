"""Training in regimes: stretches of the work at different batch sizes and so at different speeds.

Shockwave (NSDI 2023) calls them so. Everything here is closed form over `JobSpec.regimes`, so that a simulator can jump
to the next change of speed instead of stepping. Progress is a fraction of the whole work; a regime ends where its
`until` is reached, and the next one begins right there. Sums use `math.fsum`: three thirds make a whole.
"""

from __future__ import annotations

import math

from fairway.core.job import Regime

TOLERANCE = 1e-12
"""Progress this close to a boundary counts as having reached it, or rounding would stop a simulator short for ever."""

_WHOLE = (Regime(1.0),)


def regime_at(regimes: tuple[Regime, ...], progress: float) -> Regime:
    """The regime in which work is done at this progress; a job without regimes has a single one of speed 1."""
    regimes = regimes or _WHOLE
    return next((regime for regime in regimes if progress < regime.until - TOLERANCE), regimes[-1])


def next_boundary(regimes: tuple[Regime, ...], progress: float) -> float:
    """The progress at which the current regime ends: 1.0 at the latest."""
    return regime_at(regimes, progress).until


def seconds_left(work: float, progress: float, base_rate: float, regimes: tuple[Regime, ...] = ()) -> float:
    """Seconds until all of `work` is done from `progress` on, at `base_rate` units a second times the regime's speed.

    Infinite at a rate of 0 with work left; 0.0 when none is left.
    """
    shares = _shares_left(progress, regimes)
    if work <= 0 or not shares:
        return 0.0
    if base_rate <= 0:
        return math.inf
    return math.fsum(share / regime.speed for share, regime in shares) * work / base_rate


def progress_after(
    work: float, progress: float, base_rate: float, seconds: float, regimes: tuple[Regime, ...] = ()
) -> float:
    """The progress after running for some seconds: the inverse of `seconds_left`; 1.0 at most."""
    if work <= 0:
        return 1.0
    left_s, at = seconds, progress
    for share, regime in _shares_left(progress, regimes):
        speed = base_rate * regime.speed / work
        if speed * left_s < share:
            return min(1.0, at + speed * left_s)
        left_s -= share / speed
        at = regime.until
    return 1.0


def _shares_left(progress: float, regimes: tuple[Regime, ...]) -> list[tuple[float, Regime]]:
    """What is left of the work in each regime, as fractions of the whole; finished regimes are left out."""
    shares, start = [], progress
    for regime in regimes or _WHOLE:
        if start < regime.until - TOLERANCE:
            shares.append((regime.until - start, regime))
            start = regime.until
    return shares
