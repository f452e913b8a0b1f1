"""What Shockwave expects of jobs: forecasts by method, measured paces, jobs that told nothing, homes by GPU type."""

from __future__ import annotations

import numpy as np
import pytest
from shockwave_samples import GROWING, steady, told

from fairway.core import columns as c
from fairway.core.facts import History
from fairway.core.prospect import Entry, Prospect, Stage
from fairway.core.snapshot import Snapshot
from fairway.models.forecast import METHODS, Method
from fairway.policies.shockwave.outlook import look
from fairway.testing import job

GROWN = {"a": (Entry(32, 0.0), Entry(64, 0.3))}
WAITS = job("a", 1, 1000.0, batch_size=32)


@pytest.mark.parametrize(
    ("method", "left_s"), [("restatement", 490.0), ("bayes", 461.0), ("reactive", 700.0), ("agnostic", 700.0)]
)
def test_thirty_epochs_into_the_first_batch_size_the_methods_differ(method: Method, left_s: float) -> None:
    """70 epochs are left: half of them at 4 s by restatement, 38.2 less one of the 31 seen by Bayes, none else."""
    snapshot = told([WAITS], "v100:1", {"a": GROWING}, now_s=400.0, attained={"a": 300.0})
    outlook = look(snapshot, method, {})
    assert outlook.left_s[0] == pytest.approx(left_s, abs=0.1)
    assert outlook.ran_s[0] == pytest.approx(300.0)
    assert outlook.done[0] == pytest.approx(30.0)
    assert outlook.total_s[0] == pytest.approx(300.0 + left_s, abs=0.1)
    assert outlook.epoch_s[0] == pytest.approx(10.0)


@pytest.mark.parametrize(("method", "left_s"), [("restatement", 280.0), ("reactive", 280.0), ("agnostic", 700.0)])
def test_a_change_that_was_seen_settles_the_forecast(method: Method, left_s: float) -> None:
    snapshot = told([WAITS], "v100:1", {"a": GROWING}, GROWN, now_s=400.0, attained={"a": 300.0})
    assert look(snapshot, method, {}).left_s[0] == pytest.approx(left_s)


def test_epochs_that_are_done_count_at_the_batch_sizes_that_they_had() -> None:
    """Thirty at 10 s, twenty at 4 s, though the job itself took longer for the latter."""
    snapshot = told([WAITS], "v100:1", {"a": GROWING}, GROWN, now_s=600.0, attained={"a": 500.0})
    outlook = look(snapshot, "restatement", {})
    assert outlook.ran_s[0] == pytest.approx(30 * 10.0 + 20 * 4.0)
    assert outlook.left_s[0] == pytest.approx(50 * 4.0)


def test_a_measured_pace_holds_for_all_batch_sizes_and_is_remembered_while_the_job_waits() -> None:
    """The job makes an epoch in 10 s at a batch size for which 4 s were announced: 0.4 of the speed."""
    running = told([WAITS], "v100:1", {"a": GROWING}, GROWN, now_s=400.0, running={"a": 1}, attained={"a": 300.0})
    measured = look(running, "restatement", {})
    assert measured.paces == {"0": pytest.approx(0.4)}
    assert measured.left_s[0] == pytest.approx(280.0 / 0.4)
    waiting = told([WAITS], "v100:1", {"a": GROWING}, GROWN, now_s=400.0, attained={"a": 300.0})
    remembered = look(waiting, "restatement", measured.paces)
    assert remembered.left_s[0] == pytest.approx(280.0 / 0.4)
    assert remembered.paces == measured.paces


def test_a_pace_is_measured_anew_while_the_job_runs_and_one_as_announced_is_not_kept() -> None:
    running = told([WAITS], "v100:1", {"a": GROWING}, now_s=400.0, running={"a": 1}, attained={"a": 300.0})
    assert look(running, "restatement", {"0": 0.4}).paces == {}


@pytest.mark.parametrize(("announced", "pace"), [(1000.0, 0.1), (1e-6, 10.0)])
def test_paces_that_cannot_be_true_are_bounded(announced: float, pace: float) -> None:
    prospect = Prospect(100.0, (Stage(32, (announced,)),))
    running = told([WAITS], "v100:1", {"a": prospect}, now_s=400.0, running={"a": 1}, attained={"a": 300.0})
    assert look(running, "restatement", {}).paces == {"0": pace}


def test_paces_of_jobs_that_have_gone_are_forgotten() -> None:
    snapshot = told([WAITS], "v100:1", {"a": GROWING}, now_s=400.0)
    assert look(snapshot, "restatement", {"0": 0.5, "7": 0.5}).paces == {"0": 0.5}


def with_history(snapshot: Snapshot, seconds: list[float]) -> Snapshot:
    history = History()
    for each in seconds:
        history.add(each, each, 1, 0, 0)
    snapshot.frame = snapshot.frame._replace(history=history)
    return snapshot


def test_a_job_that_told_nothing_goes_on_for_as_long_as_it_has_run() -> None:
    jobs = [job("new", 1, 9e4), job("old", 1, 9e4)]
    snapshot = told(jobs, "v100:2", now_s=8000.0, attained={"old": 7000.0})
    outlook = look(snapshot, "restatement", {})
    assert outlook.left_s.tolist() == [1800.0, 7000.0]
    assert outlook.ran_s.tolist() == [0.0, 7000.0]
    assert (outlook.done / outlook.epochs).tolist() == [0.0, 0.5]


def test_a_job_that_told_nothing_is_expected_to_last_half_as_long_as_others_did() -> None:
    snapshot = with_history(told([job("new", 1, 9e4)], "v100:2"), [10.0, 400.0, 90_000.0])
    assert look(snapshot, "restatement", {}).left_s.tolist() == [200.0]


def test_what_others_took_is_looked_up_once_for_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of 5,000 jobs for each of 2,000 would take as long as the rest of a plan."""
    asked, median = [], np.median
    monkeypatch.setattr(np, "median", lambda values: asked.append(len(values)) or median(values))
    snapshot = with_history(told([job(f"j{at}", 1, 9e4) for at in range(9)], "v100:2"), [10.0, 400.0, 900.0])
    assert look(snapshot, "restatement", {}).left_s.tolist() == [200.0] * 9
    assert asked == [3]


@pytest.mark.parametrize("method", METHODS)
def test_jobs_without_work_have_a_second_left_and_no_figure_is_infinite(method: Method) -> None:
    nothing = Prospect(1.0, (Stage(0, (0.0,)),))
    over = Prospect(0.0, (Stage(0, (1.0,)),))
    jobs = [job("nothing", 1, 0.0), job("over", 1, 0.0), job("stageless", 1, 0.0)]
    prospects = {"nothing": nothing, "over": over, "stageless": Prospect(5.0, ())}
    outlook = look(told(jobs, "v100:2", prospects), method, {})
    assert (outlook.left_s >= 1.0).all()
    assert outlook.left_s[1] == 1.0
    assert all(np.isfinite(getattr(outlook, name)).all() for name in outlook._fields if name != "paces")


def two_types(jobs: int, running: dict[str, tuple[int, ...]] | None = None, **speeds: tuple[float, ...]) -> Snapshot:
    specs = [job(f"j{at}", 1, 1000.0) for at in range(jobs)]
    prospects = {spec.id: steady(1000.0, 2) for spec in specs}
    about = {"running": running, "attained": dict.fromkeys(running, 10.0)} if running else {}
    return told(specs, "v100:1x4,k80:1x4", prospects, now_s=100.0, speeds=speeds, **about)


def test_long_jobs_are_spread_over_gpu_types_so_that_all_are_busy() -> None:
    even = {f"j{at}": (1.0, 1.0) for at in range(8)}
    outlook = look(two_types(8, None, **even), "restatement", {})
    assert np.bincount(outlook.kinds, minlength=2).tolist() == [4, 4]


def test_faster_gpus_get_more_jobs_and_run_times_are_those_of_the_home() -> None:
    uneven = {f"j{at}": (1.0, 0.25) for at in range(10)}
    outlook = look(two_types(10, None, **uneven), "restatement", {})
    fast, slow = np.bincount(outlook.kinds, minlength=2).tolist()
    assert fast > slow
    assert set(outlook.left_s[outlook.kinds == 0]) == {1000.0}
    assert set(outlook.left_s[outlook.kinds == 1]) <= {4000.0}


@pytest.mark.parametrize(("slower", "home"), [(0.9, 1), (0.5, 0)])
def test_a_running_job_stays_with_its_type_unless_another_is_much_faster(slower: float, home: int) -> None:
    snapshot = told([job("a", 1, 1000.0)], "v100:1x4,k80:1x4", now_s=50.0, running={"a": (4,)})
    assert snapshot.gpu_type[0] == 1
    floats = snapshot.floats.copy()
    floats[c.SPEEDS :, 0] = 1.0, slower
    snapshot.floats = floats
    assert look(snapshot, "restatement", {}).kinds.tolist() == [home]


def test_a_gang_lives_where_it_fits_and_a_job_that_fits_nowhere_has_no_home() -> None:
    jobs = [job("wide", 6, 100.0), job("picky", 4, 100.0, gpu_types=("k80",)), job("small", 2, 100.0)]
    snapshot = told(jobs, "v100:1x6,k80:1x4")
    assert look(snapshot, "restatement", {}).kinds.tolist()[:2] == [0, 1]
    snapshot.capacity = np.array([6, 3])
    outlook = look(snapshot, "restatement", {})
    assert outlook.kinds.tolist()[:2] == [0, -1]
    assert np.isfinite(outlook.left_s).all()
