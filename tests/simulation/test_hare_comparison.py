"""Hare against the baselines of its poster, as `fairway reproduce hare-gpus` on a smaller scale; its worked example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairway import JobSpec, Result, Workload, simulate
from fairway.models.profile import load_profile

TOY = Path(__file__).resolve().parents[2] / "examples" / "hare_toy"
MODELS = {"ResNet-18": None, "LSTM": None, "Recommendation": None, "VGG19": 16, "BERT-base": 6}
CLUSTER = ",".join(["v100:1x2,t4:1x2,m60:1x2,k80:1x2"] * 2)
BASELINES = ("sched_homo", "sched_homo:types=aware", "allox:alpha=1", "srtf", "gavel_fifo")


@pytest.fixture(autouse=True)
def quick_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stronger bound of small workloads takes seconds."""
    monkeypatch.setattr("fairway.simulator.bound._MOST_WITH_TIME", 0, raising=False)


def drawn(seed: int, jobs: int = 40) -> Workload:
    """Jobs of 1 to 20 minutes on V100, all there at the start."""
    rng, rates, found = np.random.default_rng(seed), load_profile(None), []
    for number in range(jobs):
        model = list(MODELS)[int(rng.integers(len(MODELS)))]
        gang, run_s = int(rng.choice([1, 2, 4])), 60.0 * 20.0 ** float(rng.random())
        steps = max(1, round(run_s * rates.rate(model, MODELS[model], "v100", gang)))
        weight = float(rng.integers(1, 6))
        spec = JobSpec(str(number), 0.0, gang, steps=steps, model=model, batch_size=MODELS[model], weight=weight)
        found.append(spec)
    return Workload.of(found)


def measured(workload: Workload, policy: str) -> Result:
    """One run in which a switch costs what it costs Hare, and gangs do not pay for nodes that are far apart."""
    about = {"switching": "resident", "placement": "count", "min_run_s": 0.0}
    return simulate(workload, cluster=CLUSTER, policy=policy, **about)


@pytest.mark.parametrize("seed", [1, 2])
def test_hare_is_below_every_baseline_and_above_the_bound(seed: int) -> None:
    workload = drawn(seed)
    hare = measured(workload, "hare")
    least_s, own_s = hare.least_weighted_jct_s, hare.jct_weighted_s
    assert least_s is not None
    assert own_s is not None
    assert 0 < least_s <= own_s <= 1.5 * least_s
    for policy in BASELINES:
        other_s = measured(workload, policy).jct_weighted_s
        assert other_s is not None
        assert own_s < other_s, policy


def test_unknown_lengths_cost_something_but_not_everything() -> None:
    workload = drawn(1)
    known, unknown, oblivious = (
        measured(workload, policy).jct_weighted_s or 0.0 for policy in ("hare", "hare:clairvoyant=no", "sched_homo")
    )
    assert known < unknown < oblivious


@pytest.mark.parametrize(
    ("policy", "completions_s"),
    [
        ("sched_homo:order=arrival,group_s=0.5", [4.0, 6.0, 3.0]),
        ("sched_homo:types=aware,group_s=0.5", [7.0, 3.0, 1.0]),
        ("hare:assign=earliest_available,group_s=0.5", [5.0, 3.0, 1.0]),
    ],
)
def test_the_files_of_the_worked_example_give_13_11_and_9(policy: str, completions_s: list[float]) -> None:
    jobs, cluster, speeds = (str(TOY / name) for name in ("jobs.jsonl", "cluster.toml", "speeds.json"))
    result = simulate(jobs, cluster=cluster, profile=speeds, policy=policy, switching="0")
    assert [float(each) for each in result.jct_s] == completions_s
