"""AlloX: the worked examples, who waits for which type, gangs, fairness among users, and the published port."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fairway import JobSpec, Workload, simulate
from fairway.core import columns as c
from fairway.core.errors import InputError
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.policies import make_policy
from fairway.published.allox import published_shares
from fairway.simulator.result import Result
from fairway.testing import check_policy, cluster, job, snapshot_of
from fairway.testing.harness import run_policy
from fairway.testing.seeds import ALL

TWO_AND_TWO = "v100:2x1,k80:2x1"


def _granted(snapshot: Snapshot, policy: str = "allox:alpha=1") -> dict[str, str]:
    """The GPU type that each job is started on."""
    decision = make_policy(policy).decide(snapshot)
    assert decision.gpu_types is not None
    names = [kind.name for kind in snapshot.cluster.types]
    rows = decision.gpus.nonzero()[0].tolist()
    return {snapshot.job_id(int(snapshot.jobs[row])): names[decision.gpu_types[row]] for row in rows}


def _with_speeds(snapshot: Snapshot, times_s: list[list[float]]) -> Snapshot:
    """The same instant with other run times, by job and type."""
    data = json.loads(to_json(snapshot))
    floats = np.array(data["floats"])
    for row, times in enumerate(times_s):
        speeds = [1.0 / time if np.isfinite(time) else 0.0 for time in times]
        floats[c.SPEEDS : c.SPEEDS + len(times), row] = speeds
        floats[c.BEST_SPEED, row] = max(speeds)
        floats[c.WORK, row], floats[c.REGIME_END, row] = 1.0, 1.0
        floats[c.LEFT_S, row] = 1.0 / max(speeds)
        if snapshot.held[row]:
            floats[c.RATE, row] = speeds[snapshot.gpu_type[row]]
            floats[c.LEFT_RATE, row] = floats[c.RATE, row] / max(speeds)
    data["floats"] = floats.tolist()
    return from_json(json.dumps(data))


def test_the_slide_long_jobs_take_the_fast_gpus() -> None:
    times_s = [[10, 20], [15, 25], [20, 100], [20, 90]]
    jobs = [job(f"J{number}") for number in (1, 2, 3, 4)]
    snapshot = _with_speeds(snapshot_of(jobs, TWO_AND_TWO), times_s)

    def total_s(policy: str) -> float:
        granted = _granted(snapshot, policy)
        return sum(times[("v100", "k80").index(granted[spec.id])] for spec, times in zip(jobs, times_s, strict=True))

    assert _granted(snapshot) == {"J1": "k80", "J2": "k80", "J3": "v100", "J4": "v100"}
    assert total_s("allox:alpha=1") == 85
    assert total_s("sjf") == 10 + 15 + 90 + 100


def test_on_equal_gpus_the_shortest_start_first() -> None:
    jobs = [job("long", duration_s=3), job("short", duration_s=1), job("middle", duration_s=2)]
    result = simulate(Workload.of(jobs), cluster="v100:2", policy="allox")
    assert result.jct_s.sum() == pytest.approx(7)


def test_a_job_waits_for_a_fast_gpu_that_is_free_soon_and_not_for_one_that_is_not() -> None:
    for left_s, wanted in ((50.0, {"a": "v100"}), (5000.0, {"a": "v100", "b": "k80"})):
        jobs = [job("a", duration_s=left_s), job("b")]
        waits = _with_speeds(snapshot_of(jobs, "v100:1x1,k80:1x1", running={"a": (0,)}), [[left_s, 900], [100, 800]])
        assert _granted(waits) == wanted


def test_with_fill_no_gpu_is_left_idle_beside_a_job() -> None:
    jobs = [job("a", duration_s=50.0), job("b")]
    waits = _with_speeds(snapshot_of(jobs, "v100:1x1,k80:1x1", running={"a": (0,)}), [[50, 900], [100, 800]])
    assert _granted(waits, "allox:alpha=1,idle=fill") == {"a": "v100", "b": "k80"}


def test_a_gang_that_is_first_in_line_has_gpus_kept_for_it() -> None:
    jobs = [
        job("runs", 1, 100.0),
        job("gang", 2, 100.0),
        job("short", 1, 90.0, submitted_s=1.0, user="other"),
        job("long", 1, 5000.0, submitted_s=1.0, user="other"),
    ]
    about = {"now_s": 1.0, "running": {"runs": 1}, "attained": {"runs": 1.0}}
    snapshot = snapshot_of([jobs[0], jobs[1], jobs[3]], "v100:2", **about)
    assert set(_granted(snapshot)) == {"runs"}
    backfill = snapshot_of(jobs, "v100:2", **about)
    assert set(_granted(backfill)) == {"runs", "short"}


def test_the_score_counts_less_on_a_slow_type_so_its_owner_goes_first() -> None:
    jobs = [job("s", user="slow"), job("f", user="fast"), job("s2", user="slow"), job("f2", user="fast")]
    snapshot = snapshot_of(jobs, "v100:1x2,k80:1x1", running={"s": (2,), "f": (0,)})
    times = [[60.0, 600.0], [60.0, 600.0], [60.0, 61.0], [1.0, 1.1]]
    assert set(_granted(_with_speeds(snapshot, times), "allox:alpha=0.5")) == {"s", "f", "s2"}
    assert set(_granted(_with_speeds(snapshot, times), "allox:alpha=1")) == {"s", "f", "f2"}


def test_alpha_1_starts_the_shorter_job_and_a_small_alpha_that_of_the_user_without_any() -> None:
    jobs = [job("has", user="rich"), job("short", duration_s=10, user="rich"), job("long", duration_s=900, user="poor")]
    snapshot = snapshot_of(jobs, "v100:2", running={"has": 1})
    assert set(_granted(snapshot, "allox:alpha=1")) == {"has", "short"}
    assert set(_granted(snapshot, "allox:alpha=0.5")) == {"has", "long"}


def test_the_cumulative_score_remembers_what_ended_jobs_had() -> None:
    past = {"now_s": 0.0, "past": [50.0, 0.0], "now": [0.0, 0.0]}
    jobs = [job("short", duration_s=10, user="rich"), job("long", duration_s=900, user="poor")]
    snapshot = snapshot_of(jobs, "v100:1", memory=past)
    assert set(_granted(snapshot, "allox:alpha=0.5,score=cumulative")) == {"long"}
    assert set(_granted(snapshot, "allox:alpha=1,score=cumulative")) == {"short"}
    memory = make_policy("allox:score=cumulative,alpha=0.5").decide(snapshot).memory
    assert memory["now"].tolist() == [0.0, 1.0]


def _stream(policy: str, seconds: float = 20_000.0) -> Result:
    """One long job and an endless stream of short ones of two other users, on one GPU that they fill."""
    short = [JobSpec(f"s{at}", 90.0 * at, duration_s=100.0, user=f"user-{at % 2}") for at in range(int(seconds / 90.0))]
    return simulate(
        Workload.of([JobSpec("long", 1.0, duration_s=1000.0, user="quiet"), *short]), cluster="v100:1", policy=policy
    )


def test_with_alpha_below_1_nobody_starves() -> None:
    starts = {policy: _stream(policy).started_s[1] for policy in ("allox:alpha=0.6", "allox:alpha=1")}
    assert starts["allox:alpha=0.6"] <= 10 * 1000.0 + 200.0
    assert starts["allox:alpha=1"] >= 20_000.0


def test_a_decision_starts_whatever_the_least_served_cannot_use() -> None:
    jobs = [job("big", 4, user="poor"), job("has", 1, user="rich"), job("small", 1, 30.0, user="rich")]
    snapshot = snapshot_of(jobs, "v100:4", running={"has": 1})
    assert set(_granted(snapshot, "allox:alpha=0.1")) == {"has", "small"}


def test_running_jobs_are_never_stopped() -> None:
    specs = [job(f"j{at}", 1 + at % 3, 300.0 - at, submitted_s=10.0 * at) for at in range(30)]
    result = simulate(Workload.of(specs), cluster="v100:1x4,k80:1x4", policy="allox")
    assert result.finished == 30
    assert result.figures()["preemptions"] == 0


@pytest.mark.parametrize("knobs", ["alpha=1", "alpha=0.1,score=cumulative", "window=1", "patience=0"])
def test_the_contract_holds_with_other_knobs(knobs: str) -> None:
    check_policy(f"allox:{knobs}", seeds=[3, 4], other_processes=ALL)


def test_with_fill_the_policy_conserves_work() -> None:
    check_policy("allox:idle=fill", seeds=[1, 2], work_conserving=True, other_processes=ALL)


def test_the_published_form_keeps_the_contract() -> None:
    check_policy("allox:published=on", seeds=[5], other_processes=ALL)


@pytest.mark.parametrize("knobs", ["alpha=0", "alpha=1.5", "window=0", "patience=-1", "score=mean"])
def test_senseless_knobs_are_refused(knobs: str) -> None:
    with pytest.raises(InputError):
        make_policy(f"allox:{knobs}")


def test_a_job_that_fits_nowhere_while_nodes_are_down_waits() -> None:
    run = run_policy(make_policy("allox"), [job("a", 8, 100.0), job("b", 1, 10.0)], cluster("v100:2x4"))
    assert run.loop.state.active == 0


RATES = np.array([[2.0, 1.0, 0.5], [3.0, 2.0, 1.0], [4.0, 3.0, 2.0], [1.0, 1.0, 1.0]])
STEPS = np.array([300.0, 500.0, 1000.0, 500.0])


def _published(previous: np.ndarray | None = None, waited_s: float = 0.0, alpha: float = 1.0) -> list[list[float]]:
    before = np.zeros((4, 3)) if previous is None else previous
    ones = np.ones(4)
    return published_shares(STEPS, RATES, ones, waited_s * ones, np.array([2, 1, 3]), before, alpha).tolist()


def test_the_published_port_on_four_jobs_and_three_types() -> None:
    assert _published() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_in_the_published_port_who_has_a_gpu_keeps_it() -> None:
    before = np.zeros((4, 3))
    before[3, 0] = before[2, 2] = 1.0
    after = _published(before)
    assert after[3] == [1, 0, 0]
    assert after[2] == [0, 0, 1]
    assert sum(row[0] for row in after) == 2


def test_in_the_published_port_a_gang_gets_a_part_of_the_time_and_the_oldest_take_part() -> None:
    rates, steps, gangs = np.ones((3, 1)), np.array([900.0, 50.0, 10.0]), np.array([4.0, 1.0, 1.0])
    waited_s, none = np.array([30.0, 20.0, 10.0]), np.zeros((3, 1))
    assert published_shares(steps, rates, gangs, waited_s, np.array([1]), none, 0.2).tolist() == [[0.25], [0], [0]]
    assert published_shares(steps, rates, gangs, waited_s, np.array([1]), none, 1.0).tolist() == [[0], [0], [1]]


def test_in_the_published_port_many_jobs_start_shortest_first() -> None:
    jobs = 700
    steps = np.arange(jobs, 0, -1).astype(float)
    ones = np.ones(jobs)
    x = published_shares(steps, np.ones((jobs, 1)), ones, ones, np.array([3]), np.zeros((jobs, 1)))
    assert x[:, 0].nonzero()[0].tolist() == [697, 698, 699]
