"""Optimus: where the next GPU goes, what is learned of a job, and when running jobs are resized."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairway import Workload, simulate
from fairway.core.arrays import Floats, Ints
from fairway.core.check import check
from fairway.core.errors import InputError
from fairway.core.event import JobSubmitted, Woken
from fairway.core.job import JobSpec
from fairway.core.snapshot import Snapshot
from fairway.core.state import State
from fairway.models.convergence import drawn_curve
from fairway.models.optimus_fits import epochs_to_converge, fit_losses, fit_speeds, unit_s
from fairway.policies import make_policy
from fairway.policies.optimus import Optimus
from fairway.policies.optimus import notes as notes_module
from fairway.policies.optimus.greedy import LeftS, grow
from fairway.policies.optimus.notes import POINTS, SIZES, Notes, learned, refitted, take_notes
from fairway.simulator.result import Result
from fairway.testing import check_policy, cluster, job, snapshot_of, state_of
from fairway.testing.pace import loops
from fairway.testing.seeds import ALL
from fairway.traces import gavel_like

ORACLE = ("duration", "scaling")


def elastic(name: str, gpus: int = 1, duration_s: float = 1000.0, most: int = 8, **more: Any) -> JobSpec:
    return job(name, gpus, duration_s, gpus_min=1, gpus_max=most, **more)


def times(*left: Callable[[int], float]) -> LeftS:
    """The times of some jobs, each given as a function of its GPUs."""

    def left_s(jobs: Ints, gpus: Ints) -> Floats:
        pairs = zip(jobs.tolist(), gpus.tolist(), strict=True)
        return np.array([[float(left[at](size)) for size in sizes] for at, sizes in pairs])

    return left_s


def test_the_worked_example() -> None:
    """Work of 100 and 200, perfect scaling, four GPUs beyond one each: B, A, B, and the tie goes to A."""
    left = times(lambda n: 100 / n, lambda n: 200 / n)
    shares = [grow([1, 1], [9, 9], free, left) for free in range(5)]
    assert shares == [[1, 1], [1, 2], [2, 2], [2, 3], [3, 3]]


def test_a_job_that_gains_nothing_stays_while_others_go_on() -> None:
    assert grow([1, 1], [8, 8], 4, times(lambda n: 100.0, lambda n: 10 / n)) == [1, 5]
    assert grow([1, 1], [8, 8], 4, times(lambda n: 100.0 + n, lambda n: 5.0)) == [1, 1]
    assert grow([1, 1], [2, 2], 9, times(lambda n: 100 / n, lambda n: 10 / n)) == [2, 2]


def test_doubling_passes_a_size_that_does_not_help() -> None:
    left = times(lambda n: {2: 10.0, 3: 11.0}.get(n, 4.0))
    assert grow([2], [8], 4, left) == [2]
    assert grow([2], [8], 4, left, doubling=True) == [4]
    assert grow([2], [8], 1, left, doubling=True) == [2]


def test_a_factor_damps_the_gains_of_a_job() -> None:
    same = times(lambda n: 100 / n, lambda n: 100 / n)
    assert grow([1, 1], [9, 9], 1, same) == [2, 1]
    assert grow([1, 1], [9, 9], 1, same, factors=[0.95, 1.0]) == [1, 2]


def _handed_out(gpus: list[int], most: list[int], free: int, left: Floats, doubling: bool) -> list[int]:
    """The same, one step at a time by looking at every job again."""
    gpus = list(gpus)
    while free:
        offers = [(0.0, 0, 0)]
        for at, has in enumerate(gpus):
            for step in {1, has} if doubling else {1}:
                if step <= min(most[at] - has, free):
                    gain = round((left[at, has - 1] - left[at, has + step - 1]) / step, 9)
                    offers.append((gain, -at, -step))
        gain, at, step = max(offer if offer[0] > 0 else (0.0, 0, 0) for offer in offers)
        if not gain > 0:
            break
        gpus[-at] -= step
        free += step
    return gpus


@pytest.mark.parametrize("doubling", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_many_jobs_grow_as_they_would_step_by_step(seed: int, doubling: bool) -> None:
    """Also where gains rise again, tie, are not known, or gangs grow beyond the sizes that are looked up first."""
    random = np.random.default_rng(seed)
    jobs, largest = 70, (12, 90)[seed % 2]
    shapes = [
        random.integers(1, 5, (jobs, 1)) * 100 / np.arange(1, 2 * largest),
        random.integers(1, 30, (jobs, 2 * largest - 1)).astype(float),
    ]
    left = shapes[seed // 2 % 2]
    left[random.random(left.shape) < 0.01] = np.inf if seed == 7 else 1.0
    first = random.integers(1, 4, jobs).tolist()
    most = [int(random.integers(least, largest)) for least in first]
    free = int(random.integers(1, 5 * jobs))
    with np.errstate(invalid="ignore"):
        wanted = _handed_out(first, most, free, left, doubling)
    ours = grow(
        first,
        most,
        free,
        lambda rows, gpus: left[rows[:, None], np.minimum(gpus, left.shape[1]) - 1],
        doubling=doubling,
    )
    assert ours == wanted


@pytest.mark.parametrize("points", [3, 5, 12])
def test_half_of_a_loss_curve_tells_when_it_converges(points: int) -> None:
    curves = [drawn_curve(1, number) for number in range(40)]
    epochs = np.array([np.linspace(0, curve.epochs / 2, points) for curve in curves])
    losses = np.array([[curve.at(k / curve.epochs) for k in row] for curve, row in zip(curves, epochs, strict=True)])
    wanted = np.array([curve.epochs for curve in curves])
    assert epochs_to_converge(fit_losses(epochs, losses)) == pytest.approx(wanted, rel=0.03)


def test_two_losses_are_too_few_and_no_parameter_is_negative() -> None:
    epochs, losses = np.array([[0.0, 1.0, np.nan], [0, 1, 2]]), np.array([[3.0, 2.0, np.nan], [1.0, 2.0, 3.0]])
    fitted = fit_losses(epochs, losses)
    assert np.isnan(fitted[0]).all()
    assert (fitted[1] >= 0).all()
    assert epochs_to_converge(fitted[1:]).tolist() == [10.0]


def test_later_losses_count_more() -> None:
    epochs = np.arange(9.0)[None, :]
    straight = 1 / (0.5 * epochs + 0.5) + 0.2
    early, late = straight.copy(), straight.copy()
    early[0, 0] += 0.1
    late[0, 8] += 0.1
    off = [
        abs(float(1 / (b0 * 30 + b1) + b2 - 1 / 15.5 - 0.2))
        for b0, b1, b2 in (*fit_losses(epochs, early), *fit_losses(epochs, late))
    ]
    assert off[0] < off[1] / 3


def test_a_flat_curve_never_converges_later_than_the_cap() -> None:
    slow = np.array([[1e-5, 0.05, 0.0], [1e-12, 1.0, 0.0]])
    assert epochs_to_converge(slow).max() <= 100.0


def test_a_loss_that_has_run_away_is_fitted_without_a_warning() -> None:
    epochs = np.arange(6.0)[None, :].repeat(2, axis=0)
    losses = 1 / (0.5 * epochs + 0.5) + 0.2
    losses[0] *= 1e300
    losses[1, 3] = 1e300
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        fitted = fit_losses(epochs, losses)
        assert np.isfinite(epochs_to_converge(fitted)).all()
    assert fitted[0] * [1e300, 1e300, 1e-300] == pytest.approx([0.5, 0.5, 0.2], rel=0.02)


def test_speeds_are_fitted_without_negative_terms() -> None:
    truth = np.array([8.0, 0.4, 0.0, 0.1])
    gangs = np.array([[1.0, 2, 4, 8, 12, 0], [4, 0, 0, 0, 0, 0], [1, 2, 0, 0, 0, 0]])
    rates = np.array([[1 / unit_s(truth, int(n)) if n else 0.0 for n in row] for row in gangs])
    rates[2, 1] = 3 * rates[2, 0]
    fitted = fit_speeds(gangs, rates)
    assert (fitted >= 0).all()
    assert [unit_s(fitted[0], n) for n in (1, 3, 16)] == pytest.approx([unit_s(truth, n) for n in (1, 3, 16)], rel=1e-4)
    # One size says nothing about scaling, which is then taken as perfect; so is scaling that is better than perfect.
    assert fitted[1].tolist() == [pytest.approx(4 / rates[1, 0]), 0, 0, 0]
    assert fitted[2, 1:].tolist() == [0, 0, 0]


def test_a_job_that_larger_gangs_slow_down_is_not_grown() -> None:
    gangs, rates = np.array([[2.0, 4.0, 8.0, 16.0]]), np.array([[1.0, 0.5, 1 / 3, 0.25]])
    assert fit_speeds(gangs, rates)[0] == pytest.approx([0, 0, 0, 1])
    snapshot = snapshot_of([elastic("a")], "v100:8", knows={"loss"})
    empty = take_notes(snapshot, {})
    notes = {**empty, "gangs": np.pad(gangs, ((0, 0), (0, 2))), "rates": np.pad(rates, ((0, 0), (0, 2)))}
    with np.errstate(all="raise"):
        left_s, _ = learned(snapshot, refitted(snapshot, {**notes, "news": np.ones(1)}, np.array([0])), np.array([0]))
    one, two = left_s(np.array([0]), np.array([[1, 2]]))[0]
    assert two > one


def _busy(jobs: int, knows: Collection[str] = ("loss",)) -> Snapshot:
    """Elastic jobs of which six losses have been seen; all of that is new."""
    specs = [elastic(f"job-{n}", duration_s=1e5, most=16, model="LM") for n in range(jobs)]
    running = {spec.id: (n,) for n, spec in enumerate(specs)}
    state = state_of(specs, cluster(f"v100:{jobs // 4}x8"), running=running)
    notes: Notes = {}
    for minute in range(1, 7):
        notes = take_notes(_at(state, 600.0 * minute), notes)
    state.memory = {"next_s": 3600.0, "notes": notes}
    return state.snapshot(frozenset(knows))


def test_a_bounded_number_of_jobs_is_fitted_at_a_time_the_oldest_fits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "MOST_FITS", 4)
    snapshot, rows = _busy(10), np.arange(10)
    notes, order = snapshot.memory["notes"], list[list[int]]()
    for _ in range(4):
        before = notes["fitted_s"]
        notes = refitted(snapshot, notes, rows)
        order.append((notes["fitted_s"] != before).nonzero()[0].tolist())
    assert order == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]
    assert np.isfinite(notes["total"]).all()
    again = refitted(snapshot, {**notes, "news": np.ones(10), "fitted_s": np.arange(10.0, 0.0, -1.0)}, rows)
    assert (again["news"] == 0).nonzero()[0].tolist() == [6, 7, 8, 9]


def test_only_what_is_new_is_fitted_again() -> None:
    snapshot = _busy(4)
    notes = refitted(snapshot, snapshot.memory["notes"], np.arange(4))
    assert not notes["news"].any()
    assert not take_notes(snapshot, {**notes, "noted_s": 0.0})["news"].any()


@pytest.mark.parametrize("text", ["optimus", "optimus:estimates=oracle"])
def test_two_thousand_elastic_jobs_are_divided_in_milliseconds(text: str) -> None:
    """The budget is 20 ms of CPU, four loops; four times as much is allowed here, because test machines are shared."""
    policy = make_policy(text)
    snapshot = _busy(2000, policy.knows)
    assert policy.decide(snapshot).gpus.sum() == snapshot.capacity.sum()
    assert loops(lambda: policy.decide(snapshot)) < 16


def test_notes_are_bounded_and_keep_the_whole_course() -> None:
    state, notes = _running(), dict[str, Any]()
    for minute in range(1, 60):
        snapshot = _at(state, 60.0 * minute)
        notes = dict(take_notes(snapshot, json.loads(json.dumps(notes, default=lambda value: value.tolist()))))
    epochs = np.asarray(notes["epochs"])[0]
    assert epochs.shape == (POINTS,)
    assert np.asarray(notes["gangs"]).shape == (1, SIZES)
    known = epochs[np.isfinite(epochs)]
    assert len(known) >= POINTS // 2
    assert (np.diff(known) > 0).all()
    assert known[0] < known[-1] / 10
    assert np.asarray(notes["gangs"])[0].tolist() == [2.0] + [0.0] * (SIZES - 1)
    assert np.asarray(notes["rates"])[0, 0] == pytest.approx(2**0.9)


def _running() -> State:
    return state_of([elastic("a", 1, 1e5)], "v100:2", running={"a": 2})


def _at(state: State, time_s: float) -> Snapshot:
    state.apply(Woken(time_s))
    return state.snapshot(frozenset({"loss"}))


def decide(text: str, snapshot: Snapshot) -> Any:
    decision = make_policy(text).decide(snapshot)
    check(snapshot, decision)
    return decision


def test_everybody_gets_one_gpu_before_anybody_gets_two() -> None:
    jobs = [elastic(f"job-{n}", duration_s=100.0 * (n + 1)) for n in range(5)]
    decision = decide("optimus:estimates=oracle", snapshot_of(jobs, "v100:4", knows=ORACLE))
    assert decision.gpus.tolist() == [1, 1, 1, 1, 0]


def test_the_longer_job_gets_more() -> None:
    jobs = [elastic("short", duration_s=100.0), elastic("long", duration_s=10_000.0)]
    decision = decide("optimus:estimates=oracle", snapshot_of(jobs, "v100:8", knows=ORACLE))
    short, long = decision.gpus.tolist()
    assert short + long == 8
    assert long > short


def test_gangs_that_change_are_placed_smallest_first_in_the_order_of_submission() -> None:
    jobs = [elastic("big", duration_s=9000.0), elastic("a", duration_s=1.0), elastic("b", duration_s=1.0)]
    decision = decide("optimus:estimates=oracle", snapshot_of(jobs, "v100:8", knows=ORACLE))
    assert decision.gpus.tolist() == [6, 1, 1]
    assert list(decision.order) == [1, 2, 0]


def test_a_rigid_job_gets_its_gang_or_nothing() -> None:
    jobs = [elastic("a", duration_s=3e9), job("rigid", 6, 100.0), elastic("c", duration_s=50.0)]
    fits = decide("optimus:estimates=oracle", snapshot_of(jobs, "v100:9", knows=ORACLE))
    assert fits.gpus[1] == 6
    assert fits.gpus.sum() == 9
    tight = decide("optimus:estimates=oracle", snapshot_of(jobs, "v100:6", knows=ORACLE))
    assert tight.gpus[1] == 0
    assert tight.gpus.sum() == 6


@pytest.mark.parametrize("text", ["optimus", "optimus:estimates=oracle"])
def test_between_intervals_running_jobs_are_left_alone(text: str) -> None:
    policy = make_policy(text)
    jobs = [elastic("a", 2, 1e6), elastic("late", submitted_s=900.0)]
    about: dict[str, Any] = {"now_s": 1000.0, "running": {"a": 2}, "attained": {"a": 1000.0}, "knows": policy.knows}
    memory = {"next_s": 1500.0, "notes": {}}
    between = decide(text, snapshot_of(jobs, "v100:8", memory=memory, **about))
    assert between.gpus[0] == 2
    assert between.gpus[1] == 6
    assert between.wake_s == 1500.0
    due = decide(text, snapshot_of(jobs, "v100:8", memory={"next_s": 1000.0, "notes": {}}, **about))
    assert due.gpus[0] > 2
    assert due.memory["next_s"] == due.wake_s == 1600.0


def test_a_fresh_start_is_not_resized_and_an_older_job_that_waits_for_it_asks_again_when_it_may_be() -> None:
    jobs = [job("old", 4, 1e4), elastic("fresh", 1, 1e4, submitted_s=10.0)]
    snapshot = snapshot_of(jobs, "v100:4", now_s=1000.0, running={"fresh": 1}, min_run_s=60.0, knows=ORACLE)
    decision = decide("optimus:estimates=oracle", snapshot)
    assert decision.gpus.tolist() == [0, 1]
    assert 1000.0 < decision.wake_s <= snapshot.protected_until_s[1] + 1e-5
    assert decision.memory["next_s"] == decision.wake_s


def test_whoever_waits_for_the_next_interval_is_told_so() -> None:
    jobs, memory = [elastic("a", 4, 1e6), elastic("late", submitted_s=900.0)], {"next_s": 1500.0, "notes": {}}
    about: dict[str, Any] = {"now_s": 1000.0, "running": {"a": 4}, "attained": {"a": 1000.0}, "knows": ORACLE}
    snapshot = snapshot_of(jobs, "v100:4", memory=memory, **about)
    decision = decide("optimus:estimates=oracle", snapshot)
    assert decision.reason(snapshot, 1) == "0 GPUs are free; jobs that run are resized every 600 s"


def test_a_fresh_start_beside_idle_gpus_is_grown_as_soon_as_it_may_be() -> None:
    snapshot = snapshot_of(
        [elastic("fresh", 1, 1e4)], "v100:4", now_s=1000.0, running={"fresh": 1}, min_run_s=60.0, knows=ORACLE
    )
    decision = decide("optimus:estimates=oracle", snapshot)
    assert decision.gpus.tolist() == [1]
    assert 1000.0 < decision.wake_s <= snapshot.protected_until_s[0] + 1e-5


def test_a_job_that_is_never_stopped_does_not_put_off_the_next_interval_for_ever() -> None:
    jobs = [job("old", 4, 1e4), job("firm", 1, 1e4, submitted_s=10.0, preemptible=False)]
    decision = decide(
        "optimus:estimates=oracle", snapshot_of(jobs, "v100:4", now_s=1000.0, running={"firm": 1}, knows=ORACLE)
    )
    assert decision.wake_s == 1600.0


def test_on_a_mixed_cluster_a_job_stays_on_its_type_and_a_new_one_goes_to_the_fastest_with_room() -> None:
    jobs = [elastic("k", 1, 1e5, most=4), elastic("v", 1, 1e5, most=4), elastic("new", 1, 1e5, most=4)]
    where = cluster("v100:1x3,k80:1x3")
    snapshot = snapshot_of(jobs, where, now_s=900.0, running={"k": (3,), "v": (0,)}, knows=ORACLE)
    decision = decide("optimus:estimates=oracle", snapshot)
    assert decision.gpu_types is not None
    assert decision.gpu_types.tolist() == [1, 0, 0]
    assert decision.gpus.tolist() == [3, 2, 1]


def test_the_oracle_counts_steps_where_an_engine_tells_them() -> None:
    state = State(cluster("v100:6"))
    for number, (steps, speeds) in enumerate(((100.0, (1.0, 2.0, 3.0, 4.0)), (200.0, (1.0, 2.0, 2.0, 2.0)))):
        spec = elastic(f"job-{number}", most=4)
        state.apply(JobSubmitted(0.0, number, spec, 1000.0, (1.0,), 30.0, 1000.0, 0.0, speeds, None, steps))
    decision = Optimus("oracle").decide(state.snapshot(frozenset(ORACLE)))
    assert decision.gpus.tolist() == [4, 2]


def test_what_it_may_know_depends_on_where_estimates_come_from() -> None:
    assert make_policy("optimus").knows == {"loss"}
    assert make_policy("optimus:estimates=oracle").knows == {"duration", "scaling"}


@pytest.mark.parametrize("text", ["optimus:interval_s=0", "optimus:estimates=guess", "optimus:interval_s=nan"])
def test_senseless_knobs_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        make_policy(text)


def _workload(jobs: int = 50) -> Workload:
    generated = gavel_like(
        jobs, seed=1, mean_interarrival_s=600.0, durations="uniform-hours", max_h=4.0, multi_gpu=True
    )
    return Workload.of([replace(spec, gpus_min=1, gpus_max=16) for spec in generated.jobs])


def _mean_s(result: Result) -> float:
    assert result.finished == result.jobs
    return float(result.jct_s.mean())


def test_learned_estimates_come_near_those_of_the_oracle_and_beat_fixed_gangs() -> None:
    mean_s = {
        text: _mean_s(simulate(_workload(), cluster="v100:8x4", policy=text))
        for text in ("fifo", "srtf", "optimus", "optimus:estimates=oracle")
    }
    assert mean_s["optimus"] < 1.1 * mean_s["optimus:estimates=oracle"]
    assert mean_s["optimus"] < 0.8 * mean_s["srtf"] < 0.8 * mean_s["fifo"]


@pytest.mark.parametrize("text", ["optimus:estimates=oracle,interval_s=77", "optimus:interval_s=33.3"])
def test_the_contract_holds_with_other_knobs(text: str) -> None:
    check_policy(text, seeds=[11, 12], work_conserving=True, other_processes=ALL)
