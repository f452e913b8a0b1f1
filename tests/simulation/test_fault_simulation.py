"""The loop under fire: nodes are lost, launches refused, starts slow, jobs thrown off, all by seed.

Every event is followed by a check of all invariants, and at the end the journal is replayed. A failure names its seed:
`pytest tests/simulation -k "las and 17"` repeats it.
"""

from __future__ import annotations

import pytest

from fairway import simulate
from fairway.core.action import Launch
from fairway.core.errors import EngineError
from fairway.policies import make_policy, policies
from fairway.simulator.faults import Faults
from fairway.testing import FakeEngine, Invariants, Troubles, random_cluster, random_workload
from fairway.testing.harness import Run, run_engine, run_policy, unfinished
from fairway.testing.seeds import some

SEEDS_OF_FAKE = some(range(20), 3)
SEEDS_OF_SIMULATED = some(range(10), 2)


def _under_fire(policy: str, seed: int, troubles: Troubles | None = None, **about: float) -> tuple[Run, FakeEngine]:
    where = random_cluster(seed)
    jobs = random_workload(seed, where, jobs=12, span_s=800.0).jobs
    engine = FakeEngine(where, jobs, troubles or Troubles.random(seed))
    return run_engine(engine, make_policy(policy), where, seed=seed, **about), engine


@pytest.mark.parametrize("policy", sorted(policies()))
@pytest.mark.parametrize("seed", SEEDS_OF_FAKE)
def test_no_trouble_breaks_an_invariant_or_loses_a_job(policy: str, seed: int) -> None:
    run, engine = _under_fire(policy, seed, min_run_s=float(seed % 2) * 60.0)
    assert engine.left == 0, f"lost with seed {seed}: {run.loop.state.ids}"
    assert run.loop.state.active == 0
    assert not run.loop.state.held_gpus


@pytest.mark.parametrize("seed", range(20, 32))
def test_rounds_of_fixed_length_live_through_the_same(seed: int) -> None:
    _, engine = _under_fire("las:levels=100/1000", seed, round_s=100 / 3)
    assert engine.left == 0


@pytest.mark.parametrize("policy", sorted(policies()))
@pytest.mark.parametrize("seed", SEEDS_OF_SIMULATED)
def test_the_simulated_cluster_survives_frequent_failures(policy: str, seed: int) -> None:
    where = random_cluster(seed)
    jobs = random_workload(seed, where, jobs=10, span_s=600.0).jobs
    faults = Faults(mtbf_s=3000.0, repair_s=100 / 3, seed=seed)
    run = run_policy(make_policy(policy), jobs, where, faults=faults, placement=("packed", "spread", "count")[seed % 3])
    assert unfinished(run, jobs) == []


def test_an_observer_alone_can_keep_a_journal_that_replays() -> None:
    invariants = Invariants()
    workload = random_workload(5, "v100:2x4", jobs=30)
    simulate(workload, cluster="v100:2x4", policy="las:levels=100/1000", observer=invariants)
    assert invariants.checks > 60
    invariants.check_replay()


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = _under_fire("srtf", 7)[1], _under_fire("srtf", 7)[1]
    assert one.finished_s == other.finished_s
    assert one.enacted == other.enacted
    assert one.finished_s != _under_fire("srtf", 8)[1].finished_s


def test_all_troubles_really_happen() -> None:
    """The mixture is worth nothing if some of it never comes about."""
    kinds: set[str] = set()
    for seed in range(20):
        run, _ = _under_fire("las:levels=100", seed)
        for entry in run.invariants.journal:
            if entry.event is not None:
                kinds.add(type(entry.event).__name__)
                kinds.add(str(getattr(entry.event, "why", "")))
            kinds |= {type(action).__name__ for action in entry.actions}
    wanted = {"JobFailed", "JobCancelled", "NodeLost", "NodeRestored", "JobEvicted", "Suspend", "Launch"}
    assert wanted | {"the launch was refused", "its node was lost", "it was thrown off"} <= kinds


def test_a_perfect_engine_runs_every_job_once_under_fifo() -> None:
    run, engine = _under_fire("fifo", 3, Troubles())
    assert len([action for action in engine.enacted if isinstance(action, Launch)]) == len(engine.jobs)
    assert run.loop.state.round > 0


@pytest.mark.parametrize("repeated", ["NodeLost", "NodeRestored", "JobStarted", "Woken"])
def test_harmless_reports_may_come_twice(repeated: str) -> None:
    troubles = Troubles(seed=2, node_loss_s=300.0, repeat=frozenset({repeated}))
    _, engine = _under_fire("srtf", 2, troubles)
    assert engine.left == 0


@pytest.mark.parametrize("repeated", ["JobFinished", "JobSubmitted"])
def test_a_report_that_would_count_twice_is_refused(repeated: str) -> None:
    with pytest.raises((EngineError, AssertionError)):
        _under_fire("srtf", 2, Troubles(repeat=frozenset({repeated})))


def test_a_start_that_is_never_reported_costs_only_knowledge() -> None:
    _, engine = _under_fire("fifo", 4, Troubles(forget=frozenset({"JobStarted"})))
    assert engine.left == 0
