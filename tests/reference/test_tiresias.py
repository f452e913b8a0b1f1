"""The figures of the Tiresias simulator, reproduced with `--rules tiresias --placement count`.

Needs the published traces beside the repository (`../shared/data`); they are not part of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway import simulate
from fairway.policies import policies
from fairway.reproduce import Setting, Verdicts, chosen_cases
from fairway.reproduce.systems.tiresias import TRACE3
from fairway.simulator.result import Result

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the published traces are not here")


def _run(path: str, cluster: str, policy: str) -> Result:
    return simulate(DATA / path, cluster=cluster, policy=policy, rules="tiresias", placement="count")


@pytest.mark.parametrize("name", ["tiresias-60jobs", "tiresias-trace3"])
def test_every_figure_of_every_policy_is_equal(name: str) -> None:
    (case,) = chosen_cases([name])
    assert case.run is not None
    assert [figure for figure in case.run(Setting(DATA)).figures if figure.verdict is not Verdicts.MET] == []


def test_the_trace_in_the_form_of_tiresias_gives_the_same() -> None:
    result = _run("muri/trace3_tir.csv", "v100:8x8", "tiresias")
    assert result.finished == 992
    assert result.figures()["jct_s"]["mean"] == pytest.approx(TRACE3["tiresias"][0], abs=0.01)


@pytest.mark.parametrize("policy", sorted(policies()))
def test_without_contention_a_job_takes_as_long_as_it_lasts(policy: str) -> None:
    result = _run("tiresias/60_job.csv", "v100:16x4", policy)
    jct = result.figures()["jct_s"]
    assert (jct["mean"], jct["p50"]) == pytest.approx((178.42, 125.0), rel=1e-4)
    assert (result.makespan_s, result.figures()["preemptions"]) == (3271, 0)
    assert result.jct_s.tolist() == [spec.duration_s for spec in result.specs]
