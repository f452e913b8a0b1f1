"""The rules of Sia's simulator: costs and slowdowns by application, and several GPU types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairway import JobSpec, Workload, simulate
from fairway.core.errors import InputError
from fairway.models.pollux_profile import PolluxProfile
from fairway.published.epochs import EpochRates
from fairway.simulator.arrivals import Announcer
from fairway.simulator.result import Result
from fairway.simulator.rules import SIA
from fairway.testing import cluster

STEP_S = {1: 1.03, 2: 0.53, 4: 0.31, 44: 0.2}
ENDS = (10.0, 20.0, 300.0)
MIXED = "aws:2x4,rtx:1x4"


def written(folder: Path, name: str, types: dict[str, tuple[float, tuple[int, ...]]]) -> None:
    """An application that was timed on some GPU types: how much faster it is there, and with which mini-batches."""
    where = folder / name
    where.mkdir()
    for kind, (faster, sizes) in types.items():
        rows = [f"{at},{local},{s / faster},{s / faster / 10}" for at, s in STEP_S.items() for local in sizes]
        (where / f"placements-{kind}.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]))
    for batch in (100, 200, 400):
        rows = [f"{end},{end * 100 / batch},0.5,1,{batch / 10}" for end in ENDS]
        text = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])
        (where / f"validation-{batch}.csv").write_text(text)


@pytest.fixture
def profile(tmp_path: Path) -> PolluxProfile:
    written(tmp_path, "cifar10", {"aws": (1.0, (10, 100)), "rtx": (3.0, (10, 200))})
    written(tmp_path, "bert", {"aws": (1.0, (10, 100))})
    return PolluxProfile(str(tmp_path))


def train(name: str, application: str = "cifar10", **more: Any) -> JobSpec:
    model = {"cifar10": "ResNet-18", "bert": "BERT-base"}[application]
    about: dict[str, Any] = {"model": model, "dataset": application, "batch_size": 100, "global_batch": 100}
    about |= {"gpus": 1, "steps": 1000.0, "gpus_min": 1, "gpus_max": 8}
    return JobSpec(name, 0.0, **(about | more))


def run(profile: PolluxProfile, *jobs: JobSpec, where: str = MIXED, **more: Any) -> Result:
    about: dict[str, Any] = {"rules": "sia", "policy": "sia", **more}
    return simulate(Workload.of(list(jobs)), cluster=where, profile=profile, **about)


def test_starts_and_progress_cost_what_the_application_says(profile: PolluxProfile) -> None:
    """The epochs of one GPU take 10, 10 and 280 passes of 1.03 s."""
    passes = (10, 10, 280)
    cifar, bert = (run(profile, train("a", name), where="aws:1x1", policy="fifo") for name in ("cifar10", "bert"))
    assert cifar.finished_s.tolist() == [50 + sum(round(n * 1.03 * 1.8) for n in passes)]
    assert bert.finished_s.tolist() == [120 + sum(round(n * 1.03 * 1.2) for n in passes)]
    cheap = run(profile, train("a"), where="aws:1x1", policy="fifo", restart_cost_s=7.0)
    assert cheap.finished_s.tolist() == [cifar.finished_s[0] - 43]
    own = run(profile, train("a", checkpoint_s=9.0), where="aws:1x1", policy="fifo")
    assert own.finished_s.tolist() == [cifar.finished_s[0] - 41]


@pytest.mark.parametrize("rules", ["sia", "pollux"])
def test_an_adaptive_job_ends_up_on_the_faster_type(profile: PolluxProfile, rules: str) -> None:
    result = run(profile, train("a", adaptation="tuned"), rules=rules)
    assert result.finished == 1
    assert min(result.ledger.segments[-1][3]) >= 8
    assert len(result.ledger.batches) > 1


def test_a_job_cannot_use_a_type_on_which_it_was_not_timed(profile: PolluxProfile) -> None:
    result = run(profile, *(train(f"job-{at}", "bert", adaptation="tuned") for at in range(3)), train("rigid", "bert"))
    assert result.finished == 4
    assert all(max(gpus) < 8 for *_, gpus in result.ledger.segments)
    with pytest.raises(InputError, match="job 'a' can never run: the profile has no timings of it on any GPU type"):
        run(profile, train("a", "bert", adaptation="tuned"), where="rtx:1x4")
    with pytest.raises(InputError, match="unknown GPU type 'k80'"):
        run(profile, train("a"), where="aws:1x4,k80:1x4")


def test_mini_batches_are_limited_by_type(profile: PolluxProfile) -> None:
    rates, spec = EpochRates(cluster(MIXED), profile), train("a", adaptation="tuned")
    limits = rates.limits(spec)
    assert limits is not None
    assert (limits.smallest_local, limits.largest_local) == (10, 100)
    assert rates.local_limits(spec) == (("aws", 10, 100), ("rtx", 10, 200))
    assert EpochRates(cluster("aws:2x4"), profile).local_limits(spec) == ()
    assert rates.local_limits(train("a")) == ()


def test_speeds_that_are_told_are_those_of_one_gpu(profile: PolluxProfile) -> None:
    rates = EpochRates(cluster(MIXED), profile)
    wide = train("a", adaptation="tuned", gpus=8, batch_size=25, global_batch=200)
    slow, fast = Announcer(rates, SIA, frozenset({"goodput"}), 0).submitted(0.0, 0, wide).speeds
    assert (slow, fast) == pytest.approx((1 / 1.03, 3 / 1.03))
    assert Announcer(rates, SIA, frozenset(), 0).submitted(0.0, 0, wide).speeds[1] == 0.0
