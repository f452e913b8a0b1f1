"""Forecasts on the 120 jobs of Shockwave's artifact: their true regimes, and the ranking of the rules.

Needs the published trace and profiles beside the repository (`../shared/data`); they are not part of it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fairway.cli.lab.forecast_error import Stretch, error_curve, replays, scores, stretches_of
from fairway.core.job import Workload
from fairway.models.profile import load_profile
from fairway.simulator.rates import Rates
from fairway.traces import read_cluster, read_trace

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
DATA = SHARED / "data" / "gavel"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the published traces are not here")


@cache
def trace() -> Workload:
    return read_trace(str(DATA / "traces" / "shockwave_tacc_120jobs.trace"))


@cache
def courses() -> list[list[Stretch]]:
    profile = load_profile(str(DATA / "tacc_throughputs.json"))
    rates = Rates(read_cluster("v100:32"), profile, spread_matters=False, adapts="regimes")
    return [stretches_of(rates.prospect(spec), rates.regimes(spec)) for spec in trace().jobs]


@cache
def published() -> list[dict[str, Any]]:
    return json.loads((DATA / "shockwave_tacc120_profiles.json").read_text())


def test_courses_are_the_published_regimes() -> None:
    for course, told in zip(courses(), published(), strict=True):
        runs = [list(run) for run in told["bs_runs"]]
        if told["mode"] == "gns" and len(runs) > 2:
            # The artifact's last epoch falls back to the first batch size, an accident of its tables.
            runs.pop()
            runs[-1][1] += 1
        assert [each.batch_size for each in course] == [batch for batch, _ in runs]
        # The artifact counts a part of an epoch at the end of a job as a whole one.
        assert told["num_epochs"] - 1 < sum(each.epochs for each in course) < told["num_epochs"] + 1e-6
        assert [each.epochs for each in course] == pytest.approx([many for _, many in runs], abs=1.0)


def test_epochs_take_as_long_as_published() -> None:
    for course, spec, told in zip(courses(), trace().jobs, published(), strict=True):
        assert spec.steps
        assert spec.batch_size
        # Fairway makes the steps of the trace, the artifact's profile rounds them up to whole epochs.
        exact = spec.steps * spec.batch_size / told["samples_per_epoch"]
        epochs = sum(each.epochs for each in course)
        for each in course:
            published_s = told["epoch_seconds_by_bs"][str(each.batch_size)]
            assert epochs * each.epoch_s == pytest.approx(exact * published_s, rel=1e-9)


@pytest.mark.parametrize("method", ["gns", "accordion"])
def test_restatement_is_the_best_rule_on_jobs_that_change(method: str) -> None:
    changing = [
        course
        for course, spec in zip(courses(), trace().jobs, strict=True)
        if len(course) > 1 and spec.adaptation == method
    ]
    found = {name: each.relative for name, each in scores(replays(changing, 50)).items()}
    assert found["restatement"] < 0.03
    assert found["restatement"] < 0.6 * found["bayes"]
    assert found["restatement"] < 0.4 * found["reactive"]
    assert found["reactive"] < 0.65 * found["agnostic"]


def test_only_the_posterior_and_the_agnostic_rule_do_not_learn_from_a_last_change() -> None:
    changing = [course for course in courses() if len(course) > 1]
    late = {name: error_curve(several)[45] for name, several in replays(changing, 50).items()}
    assert late["restatement"] < 0.001
    assert late["reactive"] < 0.001
    assert late["bayes"] > 0.01
    assert late["agnostic"] > 0.01
