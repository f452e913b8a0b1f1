"""A job that asks for what the policy takes no notice of is told so."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.policies import make_policy
from fairway.runtime.guard.unheeded import unheeded
from fairway.runtime.jobs.request import JobRequest

RANGE = {"gpus": 1, "gpus_min": 1, "gpus_max": 4, "preempt": "checkpoint"}


def notes(policy: str, **terms: Any) -> list[str]:
    return unheeded([JobRequest(command=("true",), **terms)], make_policy(policy))


@pytest.mark.parametrize(
    ("policy", "terms", "says"),
    [
        ("tiresias", RANGE, "the policy tiresias changes no numbers of GPUs: of 1-4 the job gets 1 GPU (gandiva, opt"),
        ("tiresias", {"weight": 2.0}, "the policy tiresias does not use weights (gandiva_fair, "),
        ("optimus", {"deadline_s": 60.0}, "the policy optimus does not use deadlines (min_cost_slo does)"),
        ("capacity", {"weight": 2.0}, "the policy capacity does not use weights"),
    ],
)
def test_what_the_policy_does_not_do_is_one_line(policy: str, terms: dict[str, Any], says: str) -> None:
    (line,) = notes(policy, **terms)
    assert line.startswith(says)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("policy", "terms"),
    [
        ("tiresias", {"gpus": 4, "priority": 3, "gpu_types": ("a100",)}),
        ("tiresias", {"gpu_share": 0.5}),
        ("optimus", RANGE),
        ("min_cost_slo", {"deadline_s": 60.0}),
        ("capacity:shares=weight", {"weight": 2.0}),
    ],
)
def test_what_the_policy_does_needs_no_note(policy: str, terms: dict[str, Any]) -> None:
    assert notes(policy, **terms) == []


def test_the_tasks_of_an_array_are_told_once_and_a_policy_that_says_nothing_is_not_judged() -> None:
    request = JobRequest(command=("true",), **RANGE)
    assert len(unheeded([request.task(number) for number in range(5)], make_policy("fifo"))) == 1

    class Silent:
        name, knows, round_s = "silent", frozenset[str](), 0.0

    assert unheeded([request], Silent()) == []  # type: ignore[arg-type]
