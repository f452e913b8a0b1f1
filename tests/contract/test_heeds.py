"""What a policy says that it heeds is true: it resizes, or its decisions follow weights or deadlines, in some case.

What it does not say, it never does: the same jobs with other weights or deadlines are decided upon alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairway.core.decision import Decision
from fairway.core.job import JobSpec
from fairway.core.policy import HEEDED, heeded_by
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy, policies
from fairway.policies.priorities import by_priority
from fairway.testing import cluster
from fairway.testing.builders import random_workload
from fairway.testing.harness import run_policy
from fairway.traces import pollux_like

QUICK_TURNS = {"proportional": "proportional:quantum_s=120"}
"""Policies whose turns are longer than the jobs here."""
OTHERS = ["proportional:by=user,quantum_s=120", "capacity:shares=weight"]
CROWDED, SEEDS = "v100:1x4", (0, 1, 2)

Change = Callable[[int, JobSpec], JobSpec]
CHANGES: dict[str, tuple[Change, Change]] = {
    "weight": (lambda n, one: replace(one, weight=1.0 + n % 4), lambda n, one: replace(one, weight=1.0)),
    "deadline": (
        lambda n, one: replace(one, deadline_s=one.submitted_s + 50.0 * (n + 1)),
        lambda n, one: replace(one, deadline_s=None),
    ),
}


def decided(spec: str, jobs: Sequence[JobSpec], where: str) -> tuple[list[Any], bool]:
    """The decisions about jobs, and whether one of them got another number of GPUs than it asked for."""
    decisions: list[Any] = []
    sizes: set[bool] = {False}

    def note(snapshot: Snapshot, decision: Decision) -> None:
        granted = decision.gpus > 0
        sizes.add(bool((granted & (decision.gpus != snapshot.gpus) & (decision.gpus != snapshot.held)).any()))
        decisions.append((snapshot.now_s, snapshot.jobs.tolist(), decision.gpus.tolist(), str(decision.queues)))

    run_policy(make_policy(spec), jobs, cluster(where), checks=[note])
    return decisions, max(sizes)


def heeded(spec: str) -> frozenset[str]:
    """What a policy is seen to heed."""
    seen: set[str] = set()
    quick = spec != "hare"
    for seed in SEEDS if quick else SEEDS[1:2]:
        jobs = random_workload(seed, CROWDED, jobs=16 if quick else 8, span_s=100.0).jobs
        if decided(spec, jobs, CROWDED)[1]:
            seen.add("range")
        for term, (first, second) in CHANGES.items():
            both = [[change(n, one) for n, one in enumerate(jobs)] for change in (first, second)]
            if term not in seen and decided(spec, both[0], CROWDED)[0] != decided(spec, both[1], CROWDED)[0]:
                seen.add(term)
    tuned = [one for one in pollux_like(8, seed=1, span_h=0.1).jobs if (one.duration_s or 0.0) < 3600.0]
    if "goodput" in make_policy(spec).knows and decided(spec, tuned, "t4:4x4")[1]:
        seen.add("range")
    return frozenset(seen)


@pytest.mark.parametrize("name", [*sorted(policies()), *OTHERS])
def test_a_policy_heeds_what_it_says(name: str) -> None:
    says = heeded_by(make_policy(name))
    assert says is not None, "every policy of Fairway says what it heeds"
    assert says <= frozenset(HEEDED)
    assert says == heeded(QUICK_TURNS.get(name, name))


def test_a_policy_that_says_something_false_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, lie in (("tiresias", {"range"}), ("optimus", set[str]()), ("max_min_fairness", set[str]())):
        monkeypatch.setattr(policies()[name], "heeds", frozenset(lie))
        with pytest.raises(AssertionError):
            test_a_policy_heeds_what_it_says(name)


def test_layers_heed_what_the_policy_inside_does() -> None:
    assert heeded_by(by_priority(make_policy("optimus"))) == frozenset({"range"})
