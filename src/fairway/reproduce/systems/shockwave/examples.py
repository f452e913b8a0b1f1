"""Shockwave by hand: the forecasts of its slides, and the published program for three jobs."""

from __future__ import annotations

import numpy as np

from fairway.core.prospect import Spell, Stage, Training
from fairway.models.forecast import forecast
from fairway.policies.shockwave.outlook import JobOutlook
from fairway.policies.shockwave.program import WindowMarket
from fairway.published.shockwave import published_budgets, published_program
from fairway.reproduce.case import Figure, Findings, Setting, Yardstick
from fairway.solvers.window import plan_window

EPOCH_S = {512: 10.0, 4096: 4.0}


def examples(_: Setting) -> Findings:
    """100 epochs, truly 30 at the first batch size and 70 at the second; a window of three rounds on two GPUs."""
    exact, whole = Yardstick.equal(2), Yardstick.equal(0)
    figures = [
        Figure("expected first epochs, after 30 of them", 65, _first((512, 30)), exact, decimals=2),
        Figure("the same, once the change is seen", 30, _first((512, 30), (4096, 0)), exact, decimals=2),
        Figure("run time expected at the start", 700, _total_s((512, 0)), exact, "s"),
        Figure("the same after 10 epochs", 730, _total_s((512, 10)), exact, "s"),
        Figure("the same after 29 epochs", 787, _total_s((512, 29)), exact, "s"),
        Figure("the same after the change", 580, _total_s((512, 30), (4096, 1)), exact, "s"),
    ]
    window, preference = published_program(_three_jobs(0.0), 1e-3, 12.0)
    planned = plan_window(window, preference)
    rounds = zip("ABC", (2, 1, 1), planned.counts.tolist(), strict=True)
    figures += [
        Figure(f"rounds of {name} in the best plan", wanted, got, whole, decimals=0) for name, wanted, got in rounds
    ]
    figures.append(Figure("its objective", -0.50259, planned.objective, Yardstick.equal(5), decimals=5))
    weights = published_budgets(_three_jobs(240.0), 12.0).tolist()
    figures += [
        Figure(f"weight of {name} at 240 s", wanted, got, exact, decimals=2)
        for name, wanted, got in zip("ABC", (1.0, 6.36, 1.0), weights, strict=True)
    ]
    return Findings(tuple(figures))


def _training(*spells: tuple[int, float]) -> Training:
    stages = tuple(Stage(batch, (1.0,)) for batch in EPOCH_S)
    return Training(100.0, stages, tuple(Spell(batch, epochs) for batch, epochs in spells))


def _first(*spells: tuple[int, float]) -> float:
    return forecast(_training(*spells), tuple(EPOCH_S.values())).epochs[0]


def _total_s(*spells: tuple[int, float]) -> float:
    done_s = sum(epochs * EPOCH_S[batch] for batch, epochs in spells)
    return done_s + forecast(_training(*spells), tuple(EPOCH_S.values())).remaining_s


def _three_jobs(now_s: float) -> WindowMarket:
    """A: two GPUs, 10 epochs of a minute, fair finish at 1800 s. B: half of 4 epochs of a minute are done, 360 s.
    C: half of 20 epochs of 30 s, 900 s."""
    nothing, left_s = np.zeros(3), np.array([600.0, 120.0, 300.0])
    outlook = JobOutlook(
        kinds=np.zeros(3, dtype=np.int64),
        epochs=np.array([10.0, 4.0, 20.0]),
        done=np.array([0.0, 2.0, 10.0]),
        ran_s=nothing,
        left_s=left_s,
        longest_s=left_s,
        epoch_s=np.array([60.0, 60.0, 30.0]),
        paces={},
    )
    return WindowMarket(
        gangs=np.array([2, 1, 1]),
        capacity=2,
        running=np.zeros(3, dtype=np.bool_),
        weights=np.ones(3),
        age_s=np.full(3, now_s),
        restart_s=nothing,
        share=np.full(3, 2 / 3),
        fair_s=np.array([1800.0, 360.0, 900.0]),
        outlook=outlook,
        round_s=120.0,
        rounds=3,
        now_s=now_s,
    )
