"""The baseline policies by hand examples small enough to work out on paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.core.admission import admit
from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot
from fairway.policies import knobs, make_policy, policies, register
from fairway.simulator.result import Result
from fairway.simulator.rules import Rules
from fairway.testing import job, snapshot_of

FREE = Rules("free")


def run(policy: str, *jobs: JobSpec, cluster: str = "v100:4", rules: Any = FREE) -> Result:
    return simulate(Workload.of(list(jobs)), cluster=cluster, policy=policy, rules=rules)


def ends(result: Result) -> dict[str, float]:
    return {spec.id: round(float(end), 4) for spec, end in zip(result.specs, result.finished_s, strict=True)}


def test_fifo_blocks_at_the_head_of_the_line() -> None:
    jobs = [job("a", 3, 100.0), job("b", 2, 10.0), job("c", 1, 10.0)]
    assert ends(run("fifo", *jobs)) == {"a": 100.0, "b": 110.0, "c": 110.0}


def test_backfill_skips_what_does_not_fit() -> None:
    jobs = [job("a", 3, 100.0), job("b", 2, 10.0), job("c", 1, 10.0)]
    assert ends(run("backfill", *jobs)) == {"a": 100.0, "b": 110.0, "c": 10.0}


def test_backfill_may_starve_a_large_gang() -> None:
    small = [job(f"s{n}", 2, 100.0, submitted_s=50.0 * n) for n in range(6)]
    result = run("backfill", *small, job("large", 4, 10.0, submitted_s=1.0))
    assert ends(result)["large"] == 360.0


def test_neither_fifo_nor_backfill_nor_sjf_ever_preempts() -> None:
    jobs = [job("a", 4, 1000.0), job("b", 1, 1.0, submitted_s=1.0)]
    for policy in ("fifo", "backfill", "sjf"):
        assert ends(run(policy, *jobs)) == {"a": 1000.0, "b": 1001.0}


def test_sjf_starts_the_shortest_of_those_that_wait() -> None:
    jobs = [job("a", 4, 100.0), job("b", 4, 50.0, submitted_s=1.0), job("c", 4, 10.0, submitted_s=2.0)]
    assert ends(run("sjf", *jobs)) == {"a": 100.0, "c": 110.0, "b": 160.0}


def test_smallest_lets_small_gangs_push_large_ones_out() -> None:
    jobs = [job("large", 4, 100.0), job("small", 1, 500.0, submitted_s=10.0)]
    assert ends(run("smallest", *jobs)) == {"small": 510.0, "large": 600.0}


def test_srtf_weighs_time_and_srsf_time_by_gpus() -> None:
    """20 s on 4 GPUs is 80 GPU-seconds; 50 s on one GPU is 50."""
    wide, narrow = job("wide", 4, 20.0), job("narrow", 1, 50.0)
    assert ends(run("srtf", wide, narrow)) == {"wide": 20.0, "narrow": 70.0}
    assert ends(run("srsf", wide, narrow)) == {"narrow": 50.0, "wide": 70.0}


def test_srtf_preempts_for_a_shorter_job_only() -> None:
    jobs = [job("a", 4, 100.0), job("b", 4, 50.0, submitted_s=40.0), job("c", 4, 70.0, submitted_s=41.0)]
    result = run("srtf", *jobs)
    assert ends(result) == {"a": 150.0, "b": 90.0, "c": 220.0}


def test_a_newcomer_that_is_no_shorter_does_not_preempt() -> None:
    result = run("srtf", job("a", 4, 100.0), job("b", 4, 60.0, submitted_s=40.0))
    assert result.figures()["preemptions"] == 0


def test_equal_jobs_do_not_swap_again_and_again() -> None:
    result = run("srtf", job("a", 4, 100.0), job("b", 4, 100.0), job("c", 4, 100.0))
    assert ends(result) == {"a": 100.0, "b": 200.0, "c": 300.0}
    assert result.figures()["preemptions"] == 0


@pytest.mark.parametrize(("gpus", "at_s"), [(1, 300.0), (3, 100.0), (4, 75.0)])
def test_las_demotes_when_gpu_time_passes_the_limit(gpus: int, at_s: float) -> None:
    jobs = [job("a", gpus, 1000.0), job("b", gpus, 1000.0, submitted_s=1.0)]
    result = run("las:levels=300", *jobs, cluster=f"v100:{gpus}")
    first = next(segment for segment in result.ledger.segments if segment[0] == 0)
    assert first[2] == pytest.approx(at_s, abs=1e-5)
    assert result.figures()["preemptions"] == 1


def test_las_demotes_odd_gangs_at_thirds_of_seconds() -> None:
    jobs = [job("a", 3, 500.0), job("b", 3, 500.0)]
    result = run("las:levels=100/1000", *jobs, cluster="v100:3")
    starts = [(segment[0], round(segment[1], 4)) for segment in result.ledger.segments]
    # The second stays beyond its first limit, as the first is no better off; it yields when it passes the next limit.
    assert starts == [(0, 0.0), (1, 33.3333), (0, 366.6667), (1, 833.3333)]
    assert result.costs.rounds < 20


def test_las_by_time_ignores_the_size_of_the_gang() -> None:
    jobs = [job("a", 4, 500.0), job("b", 4, 500.0)]
    result = run("las:levels=100,metric=time", *jobs)
    assert result.ledger.segments[0][2] == pytest.approx(100.0)


def test_las_lets_a_newcomer_pass_an_old_job() -> None:
    jobs = [job("old", 4, 10_000.0), job("new", 4, 100.0, submitted_s=5000.0)]
    assert ends(run("las", *jobs)) == {"new": 5100.0, "old": 10_100.0}


def test_las_inside_a_level_does_not_preempt() -> None:
    jobs = [job("a", 4, 800.0), job("b", 4, 100.0, submitted_s=10.0)]
    assert run("las", *jobs).figures()["preemptions"] == 0


@pytest.mark.parametrize("levels", ["0", "-1", "100/50", "7/7"])
def test_las_refuses_senseless_levels(levels: str) -> None:
    with pytest.raises(InputError, match="levels"):
        make_policy(f"las:levels={levels}")


def test_proportional_shares_follow_weights() -> None:
    jobs = [job("heavy", 1, 1e5, weight=3.0), job("light", 1, 1e5)]
    state = run("proportional:quantum_s=50", *jobs, cluster="v100:1")
    held = {0: 0.0, 1: 0.0}
    for number, start_s, end_s, _ in state.ledger.segments:
        held[number] += max(0.0, min(end_s, 80_000.0) - start_s) if start_s < 80_000.0 else 0.0
    assert held[0] / held[1] == pytest.approx(3.0, rel=0.02)


def test_proportional_by_user_counts_all_jobs_of_a_user() -> None:
    jobs = [job(f"ann-{n}", 1, 1e5, user="ann") for n in range(3)] + [job("bob", 1, 1e5, user="bob")]
    result = run("proportional:quantum_s=50,by=user", *jobs, cluster="v100:1")
    bob = sum(min(end, 50_000.0) - start for n, start, end, _ in result.ledger.segments if n == 3 and start < 50_000.0)
    assert bob / 50_000.0 == pytest.approx(0.5, abs=0.02)


def test_proportional_does_not_rotate_when_everybody_has_room() -> None:
    result = run("proportional:quantum_s=10", job("a", 2, 1000.0), job("b", 2, 1000.0))
    assert result.figures()["preemptions"] == 0
    assert result.costs.rounds < 5


@pytest.mark.parametrize("quantum", ["0", "-1", "nan", "inf", "x"])
def test_proportional_refuses_senseless_quanta(quantum: str) -> None:
    with pytest.raises(InputError):
        make_policy(f"proportional:quantum_s={quantum}")


def test_reasons_name_the_cause() -> None:
    jobs = [job("a", 3, 100.0), job("b", 2, 10.0), job("c", 1, 10.0)]
    view = snapshot_of(jobs, "v100:4", running={"a": 3})
    assert make_policy("fifo").decide(view).reasons.tolist() == [0, Reason.NO_FREE_GPUS, Reason.BEHIND]
    assert make_policy("backfill").decide(view).reasons.tolist() == [0, Reason.NO_FREE_GPUS, 0]
    assert make_policy("srtf").decide(view).reasons[0] == Reason.OUTRANKED
    turns = make_policy("proportional").decide(snapshot_of([job("a", 4), job("b", 4)], "v100:4"))
    assert turns.reasons.tolist() == [0, Reason.NOT_ITS_TURN]


def test_each_policy_says_what_it_knows() -> None:
    ours = {name: cls for name, cls in policies().items() if cls.__module__.startswith("fairway.policies.")}
    assert len(ours) >= 8
    for name, cls in ours.items():
        assert "Knows:" in (cls.__doc__ or ""), name
        oracle = "oracle" in (cls.__doc__ or "")
        assert oracle or "duration" not in make_policy(name).knows, name


def test_the_registry_knows_the_baselines() -> None:
    assert {"fifo", "backfill", "sjf", "smallest", "srtf", "srsf", "las", "proportional"} <= policies().keys()
    assert knobs(policies()["las"]) == {"levels": "3600/36000", "metric": "gpu_time"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope", "unknown policy 'nope'; known: "),
        ("las:level=3", "has no knob 'level'; its knobs: levels, metric"),
        ("fifo:x=1", "its knobs: none"),
        ("las:levels=a", "must be a number"),
        ("las:metric=space", "must be one of gpu_time, time"),
        ("las:levels=1,levels=2", "given twice"),
        ("las:levels", "needs a value"),
        ("las:levels=inf", "must be finite"),
    ],
)
def test_a_wrong_name_or_knob_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        make_policy(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_policy_lacks_is_said_when_it_is_registered() -> None:
    class Bare:
        name = "bare"

    with pytest.raises(TypeError) as error:
        register(Bare)
    assert all(part in str(error.value) for part in ("@dataclass", "knows", "round_s", "decide"))
    assert "like `name" not in str(error.value), "it has one"

    @dataclass(frozen=True)
    class Hasty:
        name: ClassVar[str] = "hasty"
        knows: ClassVar[frozenset[str]] = frozenset()

        def decide(self, snapshot: Snapshot) -> Decision:
            return admit(snapshot, preempt=False)

    with pytest.raises(TypeError, match="the policy Hasty lacks the length of its rounds, like `round_s"):
        register(Hasty)
    with pytest.raises(TypeError, match="must be a text"):
        register(dataclass(frozen=True)(type("Nameless", (Hasty,), {"name": None, "round_s": 0.0})))
    assert policies().keys().isdisjoint({"bare", "hasty"})
