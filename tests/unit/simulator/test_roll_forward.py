"""Rolling forward from the middle of a run gives what the whole run gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

import fairway
from fairway.core.action import Launch
from fairway.core.decision import Decision
from fairway.core.event import Event, JobStarted, JobSubmitted, Woken
from fairway.core.job import JobSpec, Workload
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import to_json
from fairway.core.state import State
from fairway.core.state_from_snapshot import OVERRUN, resumed
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.simulator.roll_forward import Horizon, look_onward
from fairway.simulator.rules import Rules
from fairway.testing import Invariants, state_digest
from fairway.traces import generate, read_cluster

CLUSTER = "v100:2x8"
RESTART_S, MIN_RUN_S = 30.0, 60.0
RULES = Rules("test", restart_cost_s=RESTART_S, min_run_s=MIN_RUN_S)


class Interrupted:
    """Takes a copy of the state when enough has happened and enough jobs are there, between rounds."""

    def __init__(self, knows: frozenset[str], round_s: float) -> None:
        self.snapshot: Snapshot | None = None
        self.specs: dict[int, JobSpec] = {}
        self.digest = ""
        self._knows = knows
        self._round_s = round_s
        self._instants = 0

    def after_events(self, state: State, events: Sequence[Event]) -> None:
        self._instants += 1
        rounds = state.now_s / self._round_s if self._round_s else 0.5
        if self.snapshot is None and self._instants > 120 and state.active > 8 and abs(rounds - round(rounds)) > 1e-6:
            self.snapshot, self.specs = state.snapshot(self._knows).copy(), dict(state.specs)
            self.digest = state_digest(state)

    def after_round(self, snapshot: Snapshot, decision: Decision, actions: object) -> None:
        return


def _workload() -> Workload:
    return generate("philly-like", jobs=120, seed=3, gpus=16, load=1.2, users=4, longest_h=3.0)


def _interrupted(policy: str, round_s: float | None, workload: Workload) -> Interrupted:
    seen = Interrupted(make_policy(policy).knows, round_s or 0.0)
    fairway.simulate(
        workload, cluster=CLUSTER, policy=policy, rules=RULES, round_s=round_s, skip_impossible=True, observer=seen
    )
    assert seen.snapshot is not None
    return seen


@pytest.mark.parametrize(
    ("policy", "round_s"),
    [
        *(("fifo", None), ("las:levels=600/3600", None), ("tiresias:promote=4", None), ("srtf", None)),
        *(("max_min_fairness", 360.0), ("shockwave", 120.0), ("proportional", None)),
    ],
)
def test_what_comes_from_the_middle_is_what_comes_from_the_start(policy: str, round_s: float | None) -> None:
    workload = _workload()
    seen = _interrupted(policy, round_s, workload)
    assert seen.snapshot is not None
    now_s = seen.snapshot.now_s
    outlook = look_onward(
        seen.snapshot,
        seen.specs,
        make_policy(policy),
        placement("packed"),
        round_s=round_s or 0.0,
        min_run_s=MIN_RUN_S,
        restart_s=dict.fromkeys(seen.specs, RESTART_S),
    )
    known = Workload.of([job for job in workload.jobs if job.submitted_s <= now_s and job.gpus <= 16])
    whole = fairway.simulate(known, cluster=CLUSTER, policy=policy, rules=RULES, round_s=round_s)
    assert seen.snapshot.running.any()
    assert outlook.cut == ""
    assert outlook.finished_s == {job: pytest.approx(whole.finished_s[job], abs=1e-5) for job in seen.specs}


def test_a_resumed_state_is_the_same_state() -> None:
    seen = _interrupted("las:levels=600/3600", None, _workload())
    assert seen.snapshot is not None
    state = resumed(seen.snapshot, seen.specs, min_run_s=MIN_RUN_S)
    Invariants().after_events(state, ())
    assert state_digest(state) == seen.digest
    assert state.snapshot().demand == seen.snapshot.demand
    assert state.snapshot().free == seen.snapshot.free


def _lone_job(progress_s: float) -> tuple[Snapshot, dict[int, JobSpec]]:
    """A state with one running job of 100 s that has run for some time."""
    state = State(read_cluster("v100:1x1"))
    spec = JobSpec("a", 0.0, duration_s=100.0)
    state.apply(JobSubmitted(0.0, 7, spec, 100.0, (1.0,), 0.0, 100.0, 0.0))
    state.commit([Launch(7, (0,), 0)])
    state.apply(JobStarted(0.0, 7, 1.0, 0.0))
    state.apply(Woken(progress_s))
    return state.snapshot().copy(), {7: spec}


@pytest.mark.parametrize(("ran_s", "ends_s"), [(40.0, 100.0), (300.0, 300.0 + OVERRUN * 300.0)])
def test_a_job_that_outran_its_expectation_still_has_to_end(ran_s: float, ends_s: float) -> None:
    snapshot, specs = _lone_job(ran_s)
    about = {"round_s": 0.0, "min_run_s": 0.0, "restart_s": {7: 0.0}}
    outlook = look_onward(snapshot, specs, make_policy("fifo"), placement("packed"), **about)  # type: ignore[arg-type]
    assert outlook.finished_s == {7: pytest.approx(ends_s)}


def test_limits_cut_the_look_ahead_and_say_so() -> None:
    seen = _interrupted("fifo", None, _workload())
    assert seen.snapshot is not None
    about = {"round_s": 0.0, "min_run_s": MIN_RUN_S, "restart_s": dict.fromkeys(seen.specs, RESTART_S)}
    for limits, word in (
        (Horizon(horizon_s=60.0), "60 s"),
        (Horizon(steps=1), "1 steps"),
        (Horizon(wall_s=0.0), " 0 s"),
    ):
        outlook = look_onward(
            seen.snapshot,
            seen.specs,
            make_policy("fifo"),
            placement("packed"),
            limits=limits,
            **about,  # type: ignore[arg-type]
        )
        assert word in outlook.cut
        assert len(outlook.finished_s) < len(seen.specs)


def test_looking_ahead_changes_nothing_that_was_looked_at() -> None:
    seen = _interrupted("shockwave", 120.0, _workload())
    assert seen.snapshot is not None
    before = to_json(seen.snapshot)
    floats = seen.snapshot.floats.copy()
    about = {"round_s": 120.0, "min_run_s": MIN_RUN_S, "restart_s": dict.fromkeys(seen.specs, RESTART_S)}
    look_onward(seen.snapshot, seen.specs, make_policy("shockwave"), placement("packed"), **about)  # type: ignore[arg-type]
    assert to_json(seen.snapshot) == before
    assert np.array_equal(seen.snapshot.floats, floats)


@pytest.mark.parametrize(("falls_back", "ends_s"), [({}, 110.0), ({7: 0.0}, 150.0), ({7: 25.0}, 125.0)])
def test_a_job_that_cannot_save_its_work_does_it_again(falls_back: dict[int, float], ends_s: float) -> None:
    snapshot, specs = _lone_job(40.0)
    newcomer = JobSubmitted(40.0, 8, JobSpec("b", 40.0, duration_s=10.0), 10.0, (1.0,), 0.0, 10.0, 0.0)
    outlook = look_onward(
        snapshot,
        specs,
        make_policy("srtf"),
        placement("packed"),
        round_s=0.0,
        min_run_s=0.0,
        restart_s={},
        falls_back=falls_back,
        newcomers=[newcomer],
    )
    assert outlook.finished_s == {7: pytest.approx(ends_s), 8: pytest.approx(50.0)}
    assert outlook.preemptions == {7: 1}


@pytest.mark.parametrize("horizon_s", [math.inf, 1800.0])
def test_spans_tell_who_is_expected_on_which_gpus(horizon_s: float) -> None:
    seen = _interrupted("las:levels=600/3600", None, _workload())
    assert seen.snapshot is not None
    about = {"round_s": 0.0, "min_run_s": MIN_RUN_S, "restart_s": dict.fromkeys(seen.specs, RESTART_S)}
    look = partial(look_onward, seen.snapshot, seen.specs, limits=Horizon(horizon_s=horizon_s), **about)  # type: ignore[arg-type]
    outlook = look(make_policy("las:levels=600/3600"), placement("packed"), spans=True)
    plain = look(make_policy("las:levels=600/3600"), placement("packed"))
    assert plain == outlook._replace(spans=())
    now_s, ends = seen.snapshot.now_s, dict[int, float]()
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for job, from_s, to_s, gpus in outlook.spans:
        assert now_s <= from_s < outlook.until_s
        assert to_s is None or from_s <= to_s <= outlook.until_s
        assert len(gpus) == seen.specs[job].gpus
        ends[job] = max(ends.get(job, 0.0), math.inf if to_s is None else to_s)
        for gpu in gpus:
            by_gpu.setdefault(gpu, []).append((from_s, outlook.until_s if to_s is None else to_s))
    assert {job for job, *_ in outlook.spans} == outlook.started_s.keys()
    for job, end_s in outlook.finished_s.items():
        assert ends[job] == end_s
    for held in by_gpu.values():
        held.sort()
        assert all(two[0] >= one[1] - 1e-6 for one, two in itertools.pairwise(held))
