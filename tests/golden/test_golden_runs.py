"""The golden runs give what they gave when they were committed. `python -m tests.golden.update` writes them again."""

from __future__ import annotations

import json

import pytest
from runs import CLUSTERS, FILE, POLICIES, golden_run, workloads

GOLDEN = json.loads(FILE.read_text())
WORKLOADS = workloads()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_golden_run_is_unchanged(name: str, cluster: str, policy: str) -> None:
    assert golden_run(name, WORKLOADS[name], cluster, policy) == GOLDEN[f"{name}/{cluster}/{policy}"]


def test_the_file_holds_these_runs_and_no_others() -> None:
    assert set(GOLDEN) == {
        f"{name}/{where}/{policy}" for name in WORKLOADS for where in CLUSTERS for policy in POLICIES
    }


def test_all_jobs_finish_in_every_golden_run() -> None:
    assert {run["finished"] for run in GOLDEN.values()} == {60, 80}
