"""Gavel's own simulator (OSDI'20) met with `--rules gavel`: 200 jobs on 36 V100, 36 P100 and 36 K80.

Needs the traces and tables beside the repository (`../shared/data/gavel`); they are not part of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway import simulate

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel"
CLUSTER = "v100:36x1,p100:36x1,k80:36x1"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the published traces are not here")

# trace: mean JCT, makespan, longest JCT, utilisation
ISOLATED = {
    "gavel_single_200j_lam180_s42": (34392.8, 101002.6, 76417.3, 0.569),
    "gavel_multi_200j_lam300_s42": (35658.5, 143558.3, 98431.7, 0.643),
}


@pytest.mark.parametrize("trace", ISOLATED)
def test_the_figures_of_the_isolated_policy_are_met(trace: str) -> None:
    """Its shares have a closed form, so that no solver comes between the two simulators."""
    path, table = DATA / "traces" / f"{trace}.trace", str(DATA / "simulation_throughputs.json")
    result = simulate(path, cluster=CLUSTER, policy="isolated", profile=table, rules="gavel")
    jct, makespan, longest, used = ISOLATED[trace]
    assert result.mean_jct_s == pytest.approx(jct, abs=0.05)
    assert result.makespan_s == pytest.approx(makespan, abs=0.05)
    assert result.jct_s.max() == pytest.approx(longest, abs=0.05)
    assert result.utilisation == pytest.approx(used, abs=5e-4)
    assert result.finished == 200
