"""Intervals around forecasts that are as wide as earlier forecasts were wrong.

A forecast says that something happens in `lead_s` seconds. Its error, over that lead, is a *score*. The interval of the
next forecast is made of the scores of earlier ones of the same class: of n + 1 scores that come alike, each place in
their order is as likely for the last one (conformal prediction; Vovk et al. 2005). Only the latest scores count, and
an interval that was missed too often becomes wider, and one that was not narrower (adaptive conformal inference; Gibbs
and Candès, 2021), so that "80 % sure" stays right when the errors change.

A class is a policy, what was forecast, what the job's run time was known from and whether it waits, and how far ahead.
If too few scores of it are known, coarser classes count, and last a wide guess.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

SURE = 0.8
"""How often what happens is to lie within the interval."""
LATEST = 100
"""How many scores of a class count."""
LEAST = 30
"""How many scores a class needs to be used."""
FLOOR_S = 30.0
"""Added to every lead: a start that is due at once may be late by seconds, and that is no large error."""
GUESS = (-0.7, 2.0)
"""The interval of scores as long as none are known."""
STEP = 0.02
"""How much more or less is left out after each forecast that was decided, at most."""
LEAST_OUT, MOST_OUT = 0.01, 0.5
"""The least and the most part of the scores that an interval leaves out."""
FAR_S = (60.0, 900.0, 7200.0, 43200.0)
"""Leads up to these are classes of their own."""
MOST_CLASSES = 400


WAITS = "waits"
"""Said of a job that has to wait first: that makes its end less sure."""


class Subject(NamedTuple):
    """What a forecast is about: the policy that decides, what is forecast, and what its sureness depends on: what the
    job's run time is known from, and whether it waits."""

    policy: str
    kind: str
    basis: str = ""


class LeadSpread(NamedTuple):
    """From when to when something happens, in seconds from the forecast; and the class whose scores say so."""

    low_s: float
    high_s: float
    scored_as: str


class Scores:
    """The latest scores of a class, in order, and how much of them its interval leaves out.

    The forecast itself (a score of 0) is always inside. Where nearly all scores are on one side of it, the interval
    begins there, and leaves out more on the other side.
    """

    def __init__(self, sure: float, latest: int) -> None:
        self._aim = 1.0 - sure
        self._out = self._aim
        self._latest: deque[float] = deque(maxlen=latest)
        self._ordered: list[float] = []
        self.sides = GUESS

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, score: float) -> None:
        """Take note of a score."""
        if len(self._latest) == self._latest.maxlen:
            del self._ordered[bisect_left(self._ordered, self._latest[0])]
        self._latest.append(score)
        insort(self._ordered, score)
        self._set_sides()

    def decided(self, *, missed: bool) -> None:
        """It is known whether an interval of this class was missed."""
        self._out = min(max(self._out + STEP * (self._aim - missed), LEAST_OUT), MOST_OUT)
        self._set_sides()

    def _set_sides(self) -> None:
        """One object, so that other threads see both sides of the same instant."""
        known, half = self._ordered, self._out / 2.0 * (len(self._ordered) + 1) + 1e-9
        early, late = bisect_left(known, 0.0) + 1, len(known) - bisect_right(known, 0.0) + 1
        if early < half:
            self.sides = (0.0, _latest_but(known, 2.0 * half - early))
        elif late < half:
            self.sides = (_earliest_but(known, 2.0 * half - late), 0.0)
        else:
            self.sides = (_earliest_but(known, half), _latest_but(known, half))


def _earliest_but(known: Sequence[float], out: float) -> float:
    """The first score that is not left out. Where none is to be, a thing may always happen at once."""
    return min(known[int(out) - 1], 0.0) if out >= 1.0 else -1.0


def _latest_but(known: Sequence[float], out: float) -> float:
    """The last score that is not left out. Where none is to be, it may be later than all that was seen."""
    return max(known[-int(out)] if out >= 1.0 else known[-1] + (known[-1] - known[len(known) // 2]), 0.0)


class Calibration:
    """The scores of all classes. Any thread may ask for an interval; one thread adds scores."""

    def __init__(self, sure: float = SURE, latest: int = LATEST) -> None:
        self.sure = sure
        self._latest = latest
        self._classes: dict[str, Scores] = {}

    def interval(self, subject: Subject, lead_s: float, guess_s: tuple[float, float] | None = None) -> LeadSpread:
        """From when to when something happens that is forecast in `lead_s` seconds.

        `guess_s` is the interval to give as long as no scores are known.
        """
        lead_s = max(lead_s, 0.0)
        for name in classes_of(subject, lead_s):
            scores = self._classes.get(name)
            if scores is not None and len(scores) >= LEAST:
                return LeadSpread(*_around(lead_s, scores.sides), name)
        low_s, high_s = guess_s or _around(lead_s, GUESS)
        return LeadSpread(max(min(low_s, lead_s), 0.0), max(high_s, lead_s), "")

    def learn(self, subject: Subject, lead_s: float, told: LeadSpread, actual_s: float) -> None:
        """What was forecast in `lead_s` seconds, as `told`, has happened after `actual_s`."""
        issuer = self._classes.get(told.scored_as)
        if issuer is not None:
            issuer.decided(missed=not told.low_s <= actual_s <= told.high_s)
        score = (actual_s - lead_s) / (lead_s + FLOOR_S)
        for name in classes_of(subject, lead_s):
            # Taken out and put in again, so that the classes that were seen longest ago come first.
            scores = self._classes.pop(name, None) or Scores(self.sure, self._latest)
            scores.add(score)
            self._classes[name] = scores
        while len(self._classes) > MOST_CLASSES:
            del self._classes[next(iter(self._classes))]


def classes_of(subject: Subject, lead_s: float) -> tuple[str, ...]:
    """The names of the classes that a forecast belongs to, the closest first."""
    far = bisect_left(FAR_S, lead_s)
    policy, kind, basis = subject
    return f"{policy} {kind} {basis} {far}", f"{policy} {kind} {basis}", f"{policy} {kind}", f"{kind}"


def _around(lead_s: float, sides: tuple[float, float]) -> tuple[float, float]:
    low_s, high_s = (lead_s + side * (lead_s + FLOOR_S) for side in sides)
    return max(low_s, 0.0), high_s
