"""Jobs that change their batch size, in both engines: run time, speed, progress, epochs and oracle fit together."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway import Faults, JobSpec, Workload, simulate
from fairway.core import columns as c
from fairway.core.decision import Decision, Reason
from fairway.core.event import JobEvicted, JobFinished, RegimeEntered
from fairway.core.job import Regime
from fairway.core.prospect import Spell
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import to_json
from fairway.models.builtin import BuiltinProfile
from fairway.published.rounds import RoundEngine
from fairway.simulator.engine import SimulatedEngine
from fairway.simulator.faults import Outage
from fairway.simulator.rates import Rates
from fairway.simulator.rules import GAVEL, NATIVE, SHOCKWAVE, Rules
from fairway.testing import Invariants, cluster
from fairway.testing.harness import run_engine, unfinished

PROFILE = BuiltinProfile()
FREE = replace(NATIVE, name="free", restart_cost_s=0.0, min_run_s=0.0)
ROUNDS = replace(GAVEL, name="rounds", round_s=100.0, adapts="regimes")
"""The engine of rounds with batch sizes that are laid down."""


def steps_job(name: str, model: str, method: Any, batch_size: int, steps: float, **more: Any) -> JobSpec:
    about = {"submitted_s": 0.0, "model": model, "batch_size": batch_size, "adaptation": method, **more}
    return JobSpec(name, steps=steps, **about)


def rates_of(machines: str = "v100:4", adapts: Any = "regimes") -> Rates:
    return Rates(cluster(machines), PROFILE, spread_matters=True, adapts=adapts)


class Heard(Invariants):
    """Keeps all events and a copy of every snapshot, and watches the laws."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.snapshots: list[Snapshot] = []

    def after_events(self, state: Any, events: Any) -> None:
        super().after_events(state, events)
        self.events += events

    def after_round(self, snapshot: Any, decision: Any, actions: Any) -> None:
        super().after_round(snapshot, decision, actions)
        self.snapshots.append(snapshot.copy())

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_resnet_50_alone_takes_the_epochs_of_its_six_regimes() -> None:
    job = steps_job("a", "ResNet-50", "accordion", 32, 90 * 3125)
    seconds = {b: 100_000 / b / PROFILE.rate("ResNet-50", b, "v100", 1) for b in (32, 128)}
    expected_s = 48 * seconds[32] + 42 * seconds[128]
    heard = Heard()
    result = simulate(Workload.of([job]), cluster="v100:4", policy="fifo", observer=heard)
    assert result.jct_s[0] == pytest.approx(expected_s, rel=1e-9, abs=1e-5)
    assert rates_of("v100:4").alone_s(job) == pytest.approx(expected_s, rel=1e-9, abs=1e-5)
    changes = heard.of(RegimeEntered)
    assert [event.batch_size for event in changes] == [128, 32, 128, 32, 128]
    assert [event.progress / 3125 for event in changes] == pytest.approx([28, 30, 40, 60, 70])


TABLES = [
    ("ResNet-18", "gns", 16, 1, [31, 41, 51, 71]),
    ("ResNet-18", "gns", 64, 2, [21, 41]),
    ("LM", "gns", 10, 4, [11, 31, 61]),
    ("Recommendation", "gns", 1024, 1, [21, 51, 91]),
]


@pytest.mark.parametrize(("model", "method", "first", "gpus", "doublings"), TABLES)
def test_published_doublings_give_the_run_time(
    model: str, method: str, first: int, gpus: int, doublings: list[int]
) -> None:
    samples = {"ResNet-18": 50_000, "LM": 59_675, "Recommendation": 117_907}[model]
    epochs, per_epoch = 95, math.ceil(samples / first)
    expected_s = 0.0
    for epoch in range(epochs):
        batch = first * 2 ** sum(start <= epoch for start in doublings)
        expected_s += per_epoch * first / batch / PROFILE.rate(model, batch, "a100", gpus)
    job = steps_job("a", model, method, first, epochs * per_epoch, gpus=gpus)
    result = simulate(Workload.of([job]), cluster="a100:4", policy="fifo")
    assert result.jct_s[0] == pytest.approx(expected_s, rel=1e-9, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["BERT", "VGG19", "DeepSpeech2", "YOLOv3"]),
    st.sampled_from(["accordion", "gns"]),
    st.sampled_from([1, 3, 8, 20]),
    st.integers(1, 4),
    st.floats(1.0, 1e5),
    st.sampled_from(["v100", "k80", "a100"]),
)
def test_general_courses_give_the_run_time(
    model: str, method: str, first: int, gpus: int, steps: float, kind: str
) -> None:
    """An independent walk through the hundredths of the training."""
    rate = {batch: PROFILE.rate(model, batch, kind, gpus) for batch in (first << n for n in range(13))}
    if not rate[first]:
        return
    fitting = [batch for batch, speed in rate.items() if speed > 0 and batch <= max(4096, first)]
    batch, expected_s = first, 0.0
    for part in range(100):
        if method == "accordion":
            small = part < 30 or 50 <= part < 60 or 75 <= part < 85
            batch = first if small else max(fitting)
        elif part % 10 == 0 and math.log2(batch / first) < 0.8 * part / 10 - 1e-9 and 2 * batch in fitting:
            batch *= 2
        expected_s += steps / 100 * first / batch / rate[batch]
    job = steps_job("a", model, method, first, steps, gpus=gpus)
    result = simulate(Workload.of([job]), cluster=f"{kind}:4", policy="fifo")
    assert result.jct_s[0] == pytest.approx(expected_s, rel=1e-9, abs=2e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 8.0)), min_size=1, max_size=6),
    st.floats(0.0, 1e4),
)
def test_explicit_speeds_give_the_run_time(parts: list[tuple[int, float]], duration_s: float) -> None:
    total, done, regimes, expected_s = sum(part for part, _ in parts), 0, [], 0.0
    for part, speed in parts:
        done += part
        regimes.append(Regime(done / total, None, speed))
        expected_s += duration_s * part / total / speed
    job = JobSpec("a", 0.0, duration_s=duration_s, adaptation="schedule", regimes=tuple(regimes))
    result = simulate(Workload.of([job]), cluster="v100:1", policy="srtf")
    assert result.jct_s[0] == pytest.approx(expected_s, rel=1e-9, abs=1e-5)


def test_the_engine_of_rounds_goes_through_laid_down_regimes_at_round_ends() -> None:
    job = steps_job("a", "VGG19", "gns", 16, 5000.0)
    regimes = rates_of("v100:1").regimes(job)
    assert [regime.batch_size for regime in regimes] == [16, 32, 64]
    done, now_s, at = 0.0, 0.0, 0
    while True:
        batch = regimes[at].batch_size or 0
        speed = PROFILE.rate("VGG19", batch, "v100", 1) * batch / 16
        made = min(float(int(speed * 100.0)), 5000.0 - done)
        done, now_s = done + made, now_s + made / speed
        if done >= 5000.0:
            break
        while done / 5000.0 >= regimes[at].until - 1e-12:
            at += 1
    heard = Heard()
    result = simulate(Workload.of([job]), cluster="v100:1", policy="fifo", rules=ROUNDS, observer=heard)
    assert result.jct_s[0] == pytest.approx(now_s, rel=1e-9, abs=1e-5)
    assert [event.batch_size for event in heard.of(RegimeEntered)] == [32, 64]


@dataclass(frozen=True)
class Restless:
    """Deals the GPUs out anew every few seconds: other jobs, sizes, types and neighbours. Draws by the seed."""

    every_s: float = 37 / 3
    warm: bool = False

    name: ClassVar[str] = "restless"
    knows: ClassVar[frozenset[str]] = frozenset({"duration", "regimes", "scaling"})
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        random = np.random.default_rng([snapshot.seed, snapshot.round])
        gpus = np.zeros(len(snapshot), dtype=np.int64)
        kinds, free = np.full(len(snapshot), -1), snapshot.capacity.copy()
        partners: dict[int, int] = {}
        for row in random.permutation(len(snapshot)).tolist():
            gang = int(random.integers(snapshot.gpus_min[row], snapshot.gpus_max[row] + 1))
            usable = ((free >= gang) & (snapshot.speeds[:, row] > 0)).nonzero()[0]
            hosts = [other for other in gpus.nonzero()[0].tolist() if other not in partners]
            hosts = [other for other in hosts if gpus[other] >= gang and snapshot.speeds[kinds[other], row] > 0]
            hosts = [other for other in hosts if other not in partners.values()]
            if hosts and random.random() < 0.4:
                host = hosts[int(random.integers(len(hosts)))]
                partners[row], kinds[row] = host, kinds[host]
            elif len(usable):
                kinds[row] = int(random.choice(usable))
                free[kinds[row]] -= gang
            else:
                continue
            gpus[row] = gang
        reasons = np.multiply(gpus == 0, int(Reason.NOT_ITS_TURN), dtype=np.int8)
        wake_s = snapshot.now_s + self.every_s
        return Decision(gpus, reasons, kinds, wake_s=wake_s, partners=partners, warm=self.warm)


def mixed_jobs(seed: int) -> list[JobSpec]:
    """Accordion, GNS, a schedule and static jobs, some elastic, one without work."""
    random = np.random.default_rng(seed)
    steps = random.integers(200, 2000, 8).tolist()
    grows = (Regime(1 / 3, 8), Regime(0.7, 32), Regime(1.0, 16))
    faster = (Regime(0.25), Regime(0.5, None, 3.0), Regime(1.0, None, 0.7))
    elastic = {"gpus": 2, "gpus_min": 1, "gpus_max": 3}
    jobs = [
        steps_job("vgg", "VGG19", "accordion", 16, steps[0]),
        steps_job("bert", "BERT", "gns", 4, steps[1], **elastic),
        steps_job("speech", "DeepSpeech2", "gns", 10, steps[2], checkpoint_every_s=50.0),
        steps_job("rec", "Recommendation", "accordion", 512, 40 * 231, submitted_s=11.0),
        steps_job("yolo", "YOLOv3", "schedule", 8, steps[3], regimes=grows, **elastic),
        JobSpec("timed", 5.0, duration_s=float(steps[4]) / 3, adaptation="schedule", regimes=faster),
        JobSpec("plain", 20.0, gpus=2, duration_s=150.0),
        steps_job("nothing", "ResNet-18", "gns", 16, 0.0, submitted_s=30.0),
    ]
    return sorted(jobs, key=lambda job: job.submitted_s)


class Truth:
    """Compares every snapshot with what the engine knows to be true."""

    def __init__(self, engine: SimulatedEngine | RoundEngine, rates: Rates) -> None:
        self.engine = engine
        self.rates = rates
        self.regimes_seen = 0

    def __call__(self, snapshot: Snapshot, decision: Decision) -> None:
        remaining_s = snapshot.oracle.remaining_s
        for row, number in enumerate(snapshot.jobs.tolist()):
            self.check(snapshot, row, self.engine._active[number], float(remaining_s[row]))

    def check(self, snapshot: Snapshot, row: int, job: Any, remaining_s: float) -> None:
        spec, rates, work = job.spec, self.rates, rates_work(job)
        progress = float(snapshot.progress[row])
        true = job.progress if isinstance(self.engine, RoundEngine) or not job.gpus else job.done_at(snapshot.now_s)
        assert progress == pytest.approx(true, rel=1e-9, abs=1e-9)
        assert snapshot.batch_size[row] == (job.batch_size or 0)
        assert snapshot.speeds[:, row].tolist() == list(rates.speeds_in(spec, job.regime))
        assert snapshot.scaling(row) == rates.scaling_in(spec, job.regime)
        self.check_remaining(snapshot, row, job, remaining_s)
        training = snapshot.training(row)
        assert training is not None
        part = progress / work if work > 0 else 1.0
        assert training.done == pytest.approx(part * training.epochs, rel=1e-9, abs=1e-9)
        if isinstance(self.engine, SimulatedEngine) and work > 0:
            self.check_spells(job, part, training.epochs, training.spells)

    def check_remaining(self, snapshot: Snapshot, row: int, job: Any, remaining_s: float) -> None:
        """What is left of each regime at its best speed, after the restart that is due."""
        work, start, expected_s = rates_work(job), float(snapshot.progress[row]), 0.0
        ahead = [regime for regime in self.rates.regimes(job.spec) if regime.until > job.regime.until]
        for regime in (job.regime, *ahead):
            end = regime.until * work
            if end > start:
                expected_s += (end - start) / max(self.rates.speeds_in(job.spec, regime))
                start = end
        waits = snapshot.held[row] == 0 and snapshot.launches[row] > 0
        restarting_s = float(snapshot.restart_s[row]) if waits else 0.0
        if snapshot.held[row]:
            restarting_s = max(float(snapshot.floats[c.READY_S, row]) - snapshot.now_s, 0.0)
        assert remaining_s == pytest.approx(expected_s + restarting_s, rel=1e-7, abs=1e-4)

    def check_spells(self, job: Any, part: float, epochs: float, spells: Sequence[Spell]) -> None:
        """The spells are the regimes up to now, cut off at the present progress."""
        expected, start = list[Spell](), 0.0
        for regime in self.rates.regimes(job.spec):
            batch, end = regime.batch_size or job.spec.batch_size or 0, min(regime.until, max(part, start))
            if expected and expected[-1].batch_size == batch:
                expected[-1] = Spell(batch, expected[-1].epochs + (end - start) * epochs)
            else:
                expected.append(Spell(batch, (end - start) * epochs))
            start = end
            if regime is job.regime:
                break
        assert [spell.batch_size for spell in spells] == [spell.batch_size for spell in expected]
        lengths = [spell.epochs for spell in expected]
        assert [spell.epochs for spell in spells] == pytest.approx(lengths, rel=1e-6, abs=1e-6)
        self.regimes_seen = max(self.regimes_seen, len(spells))


def rates_work(job: Any) -> float:
    return float(job.work)


def restless(
    seed: int, machines: str, rules: Rules = FREE, faults: Faults | None = None, **knobs: Any
) -> tuple[Any, Truth, list[JobSpec]]:
    where, jobs = cluster(machines), mixed_jobs(seed)
    rates = Rates(where, PROFILE, spread_matters=True, adapts=rules.adapts)
    about: dict[str, Any] = {"tells": Restless.knows, "faults": faults}
    engine: Any
    if rules.rounds == "whole_steps":
        engine = RoundEngine(where, jobs, rates, rules, round_s=rules.round_s or 0.0, **about)
    else:
        engine = SimulatedEngine(where, jobs, rates, rules, **about)
    truth = Truth(engine, rates)
    run = run_engine(engine, Restless(**knobs), where, seed=seed, round_s=0.0, checks=[truth])
    return run, truth, jobs


@pytest.mark.parametrize("machines", ["v100:2x2", "a100:1x2,v100:2x2,k80:1x3"])
@pytest.mark.parametrize("seed", range(4))
def test_snapshots_tell_the_truth_at_every_change(machines: str, seed: int) -> None:
    """Stopped, moved, resized and paired at random, also right at a boundary: all figures agree with the engine."""
    run, truth, jobs = restless(seed, machines)
    assert unfinished(run, jobs) == []
    assert truth.regimes_seen >= 3


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_snapshots_tell_the_truth_after_failures(seed: int, warm: bool) -> None:
    """Nodes fail all the time, and jobs fall back to checkpoints in earlier regimes."""
    faults = Faults(mtbf_s=400.0, repair_s=20.0, seed=seed)
    rules = replace(NATIVE, name="frail", min_run_s=0.0, restart_cost_s=2.0, checkpoint_every_s=300.0)
    run, truth, jobs = restless(seed, "a100:2x2,v100:2x2", rules, faults, warm=warm)
    assert unfinished(run, jobs) == []
    assert truth.regimes_seen >= 3


@pytest.mark.parametrize("rules", [ROUNDS, replace(SHOCKWAVE, most_run=math.inf)], ids=["regimes", "requests"])
@pytest.mark.parametrize("machines", ["v100:2x2", "a100:1x2,v100:2x2"])
@pytest.mark.parametrize("seed", range(2))
def test_snapshots_tell_the_truth_in_the_engine_of_rounds(rules: Rules, machines: str, seed: int) -> None:
    run, _, jobs = restless(seed, machines, replace(rules, round_s=20.0))
    assert unfinished(run, jobs) == []


def test_a_boundary_and_a_stop_at_the_same_instant_keep_progress_and_regime() -> None:
    """The stop comes 100 s after the start, exactly where the first regime ends."""
    regimes = (Regime(0.5, None, 1.0), Regime(1.0, None, 2.0))
    long = JobSpec("long", 0.0, duration_s=200.0, adaptation="schedule", regimes=regimes)
    short = JobSpec("short", 100.0, duration_s=10.0)
    heard = Heard()
    result = simulate(Workload.of([long, short]), cluster="v100:1", policy="srtf", rules=FREE, observer=heard)
    assert result.jct_s.tolist() == pytest.approx([160.0, 10.0])
    (change,) = heard.of(RegimeEntered)
    assert (change.time_s, change.progress) == (100.0, 100.0)


def test_a_failure_truncates_what_was_entered_and_the_change_comes_again() -> None:
    regimes = (Regime(0.5, 8), Regime(1.0, 32))
    job = steps_job("a", "VGG19", "schedule", 8, 4000.0, regimes=regimes, checkpoint_every_s=1e6)
    first_s = 2000.0 / PROFILE.rate("VGG19", 8, "v100", 1)
    down = Faults((Outage(first_s + 50.0, 0, 10.0),))
    heard = Heard()
    about: dict[str, Any] = {"cluster": "v100:1", "policy": "fifo", "faults": down, "observer": heard}
    result = simulate(Workload.of([job]), rules=replace(FREE, checkpoint_every_s=1e6), **about)
    second_s = 2000.0 / (PROFILE.rate("VGG19", 32, "v100", 1) * 4)
    assert result.jct_s[0] == pytest.approx(first_s + 50 + 10 + first_s + second_s, rel=1e-6)
    assert [event.batch_size for event in heard.of(RegimeEntered)] == [32, 8, 32]
    after = [snapshot for snapshot in heard.snapshots if snapshot.now_s > first_s + 50 and len(snapshot)]
    entries = [snapshot.facts(0).entries for snapshot in after]
    assert all(entry.since <= 0.5 + 1e-9 for seen in entries for entry in seen)


@dataclass(frozen=True)
class SideBySide:
    """All jobs on the GPUs of the first as long as they fit; who was thrown off gets GPUs of its own."""

    name: ClassVar[str] = "side-by-side"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        rows = len(snapshot)
        fit = rows == 2 and bool(snapshot.launches[1] == 0 or snapshot.host[1] >= 0)
        partners = {1: 0} if fit else {}
        return Decision(np.ones(rows, dtype=np.int64), np.zeros(rows, dtype=np.int8), partners=partners)


@pytest.mark.parametrize("rules", [FREE, ROUNDS], ids=["native", "rounds"])
def test_a_guest_that_outgrows_its_place_in_its_last_regime_goes_on_elsewhere(rules: Rules) -> None:
    regimes = (Regime(0.3, 16), Regime(1.0, 128))
    host = steps_job("host", "ResNet-50", "none", 64, 200_000.0)
    guest = steps_job("guest", "ResNet-50", "schedule", 16, 30_000.0, submitted_s=1.0, regimes=regimes)
    heard = Heard()
    about: dict[str, Any] = {"cluster": "v100:2", "policy": SideBySide(), "rules": rules, "observer": heard}
    result = simulate(Workload.of([host, guest]), **about)
    assert [event.job for event in heard.of(JobEvicted)] == [1]
    assert [event.batch_size for event in heard.of(RegimeEntered)] == [128]
    assert len(heard.of(JobFinished)) == 2
    evicted_s = heard.of(JobEvicted)[0].time_s
    last_s = 0.7 * 30_000 / (PROFILE.rate("ResNet-50", 128, "v100", 1) * 8)
    rounded_s = 200.0 if rules is ROUNDS else 1e-3
    assert result.jct_s[1] + 1.0 - evicted_s == pytest.approx(last_s, abs=rounded_s)


def test_a_regime_that_does_not_fit_on_one_type_sends_the_job_to_the_other() -> None:
    grows = (Regime(0.5, 8), Regime(1.0, 32))
    job = steps_job("a", "BERT", "schedule", 8, 1000.0, regimes=grows)
    heard = Heard()
    result = simulate(Workload.of([job]), cluster="k80:1,a100:1", policy=OnFirstType(), rules=FREE, observer=heard)
    assert result.finished == 1
    slow_s = 500 / PROFILE.rate("BERT", 8, "k80", 1)
    fast_s = 500 / (PROFILE.rate("BERT", 32, "a100", 1) * 4)
    assert result.jct_s[0] == pytest.approx(slow_s + fast_s, rel=1e-6)


@dataclass(frozen=True)
class OnFirstType:
    """The first GPU type that a job can use."""

    name: ClassVar[str] = "first-type"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        rows = len(snapshot)
        kinds = (snapshot.speeds > 0).argmax(axis=0) if rows else np.zeros(0, dtype=np.int64)
        return Decision(np.ones(rows, dtype=np.int64), np.zeros(rows, dtype=np.int8), kinds.astype(np.int64))


def test_work_of_nothing_ends_at_once_in_both_engines() -> None:
    jobs = [
        steps_job("gns", "ResNet-18", "gns", 16, 0.0),
        steps_job("accordion", "ResNet-18", "accordion", 16, 0.0),
        steps_job("bert", "BERT", "gns", 4, 0.0),
        steps_job("schedule", "BERT", "schedule", 4, 0.0, regimes=(Regime(0.5, 4), Regime(1.0, 8))),
    ]
    for rules in (FREE, ROUNDS, SHOCKWAVE):
        result = simulate(Workload.of(jobs), cluster="v100:4", policy="fifo", rules=rules)
        assert result.finished == 4
        assert float(max(result.jct_s)) == 0.0


def test_rules_that_do_not_adapt_keep_the_batch_but_for_explicit_regimes() -> None:
    job = steps_job("a", "VGG19", "gns", 16, 5000.0)
    fixed = rates_of(adapts="never")
    assert len(fixed.regimes(job)) == 1
    assert fixed.prospect(job).stages == (fixed.prospect(job).stages[0]._replace(batch_size=16),), (
        "one stage at the batch size of the job"
    )
    scheduled = replace(job, adaptation="schedule", regimes=(Regime(0.5, 16), Regime(1.0, 64)))
    assert [stage.batch_size for stage in fixed.prospect(scheduled).stages] == [16, 64]


def test_a_prospect_has_whole_epochs_at_the_changes_and_their_speeds() -> None:
    job = steps_job("a", "ResNet-18", "gns", 16, 99.5 * 3125)
    rates = rates_of("v100:4,k80:4")
    prospect = rates.prospect(job)
    assert prospect.epochs == 99.5
    regimes = rates.regimes(job)
    assert [regime.until * 99.5 for regime in regimes] == pytest.approx([31, 41, 51, 71, 99.5])
    for stage in prospect.stages:
        epoch_s = [
            50_000 / stage.batch_size / PROFILE.rate("ResNet-18", stage.batch_size, k, 1) for k in ("v100", "k80")
        ]
        assert [1 / speed for speed in stage.speeds] == pytest.approx(epoch_s)


def test_a_prospect_under_requests_stops_where_a_batch_is_not_granted() -> None:
    rates = rates_of("k80:4", adapts="requests")
    job = steps_job("a", "ResNet-50", "accordion", 64, 60 * 1563)
    assert [stage.batch_size for stage in rates.prospect(job).stages] == [64], "128 does not fit there"
    largest = steps_job("a", "ResNet-50", "accordion", 128, 60 * 782)
    assert len(rates_of("v100:4", adapts="requests").prospect(largest).stages) == 1, "never another batch size"


def visible(snapshot: Snapshot) -> str:
    """All that a policy without an oracle may read: the columns of the future are struck out."""
    plain = json.loads(to_json(snapshot))
    for column in (c.REGIME_END, c.TAIL_S, c.LEFT_S, c.LEFT_RATE):
        del plain["floats"][column][:]
    return json.dumps([plain, snapshot.progress.tolist()])


FUTURES = [
    (Regime(0.4, 16), Regime(1.0, 64)),
    (Regime(0.4, 16), Regime(0.5, 32), Regime(0.8, 16), Regime(1.0, 64)),
    (Regime(0.7, 16), Regime(1.0, 32)),
    (Regime(1.0, 16),),
]


@pytest.mark.parametrize("policy", ["las:levels=100/400", "gandiva", "max_min_fairness"])
@pytest.mark.parametrize("rules", [NATIVE, replace(ROUNDS, round_s=20.0)], ids=["native", "rounds"])
def test_nothing_visible_depends_on_regimes_that_are_still_to_come(policy: str, rules: Rules) -> None:
    runs = []
    for future in FUTURES:
        job = steps_job("a", "VGG19", "schedule", 16, 1000.0, regimes=future)
        others = [JobSpec(f"o{n}", 10.0 * n, gpus=1, duration_s=120.0 + 7 * n) for n in range(4)]
        heard = Heard()
        simulate(Workload.of([job, *others]), cluster="v100:2", policy=policy, rules=rules, observer=heard)
        end_s = next((event.time_s for event in heard.of(RegimeEntered)), math.inf)
        finished_s = next(event.time_s for event in heard.of(JobFinished) if event.job == 0)
        runs.append((min(end_s, finished_s), heard.snapshots))
    assert runs[0][0] < runs[2][0] < runs[3][0]
    for one_s, one in runs:
        for other_s, other in runs:
            both = [[visible(s) for s in seen if s.now_s < min(one_s, other_s)] for seen in (one, other)]
            assert both[0] == both[1]
            assert len(both[0]) >= 3
