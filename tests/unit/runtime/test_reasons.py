"""What lists say of waiting jobs is what the policy says when it is asked."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.decision import Decision, Reason, reason_text
from fairway.policies import make_policy
from fairway.runtime.jobs.waiting import GRANTED, Reasons
from fairway.testing import random_snapshot
from fairway.testing.builders import cluster, job, snapshot_of


def test_texts_are_those_of_the_decision() -> None:
    for seed in range(20):
        snapshot = random_snapshot(seed)
        for name in ("fifo", "las", "max_min_fairness", "capacity"):
            decision = make_policy(name).decide(snapshot)
            reasons = Reasons()
            reasons.note(snapshot, decision)
            told = reasons.all()
            for row, number in enumerate(snapshot.jobs.tolist()):
                assert told[number] == (GRANTED if decision.gpus[row] else decision.reason(snapshot, row))


def test_nothing_is_said_before_a_round_and_later_rounds_count() -> None:
    reasons, snapshot = Reasons(), random_snapshot(1)
    assert reasons.all() == {}
    decision = make_policy("fifo").decide(snapshot)
    reasons.note(snapshot, decision)
    first = reasons.all()
    assert reasons.all() is first, "made once"
    rows = range(len(snapshot))
    reasons.note(snapshot, decision.without(rows, texts=dict.fromkeys(rows, "another reason")))
    assert set(reasons.all().values()) == {"another reason"}


def test_what_is_no_longer_so_is_forgotten_until_the_next_round() -> None:
    reasons, snapshot = Reasons(), random_snapshot(1)
    decision = make_policy("fifo").decide(snapshot)
    reasons.forget(0)
    reasons.note(snapshot, decision)
    before, (first, *others) = dict(reasons.all()), snapshot.jobs.tolist()
    reasons.forget(first)
    assert first not in reasons.all()
    assert [reasons.all()[job] for job in others] == [before[job] for job in others]
    reasons.note(snapshot, decision)
    assert reasons.all() == before


def test_one_is_not_several() -> None:
    assert reason_text(Reason.NO_FREE_GPUS, 1, 0, "") == "needs 1 GPU, 0 free"
    assert reason_text(Reason.NO_FREE_GPUS, 2, -1, "") == "needs 2 GPUs, 0 free"
    assert reason_text(Reason.NO_FREE_GPUS, 2, 1, "") == "needs 2 GPUs, 1 free"


def test_on_gpus_of_several_types_a_reason_says_first_what_differs() -> None:
    jobs = [
        job("a", gpus=3, gpu_types=("a100",)),
        job("b", gpus=4, gpu_types=("v100",)),
        job("c", gpus=2, gpu_types=("a100",)),
        job("d", gpus=2),
        job("e", gpus=1, gpu_types=("v100",)),
        job("f", gpus=4, gpu_types=("v100", "a100")),
    ]
    reasons, snapshot = Reasons(), snapshot_of(jobs, cluster("a100:1x4,v100:1x4,k80:1x2"))
    decision = Decision(
        np.array([3, 4, 0, 0, 0, 0]),
        np.array([0, 0, *[int(Reason.TYPE_FULL)] * 4], dtype=np.int8),
        gpu_types=np.array([0, 1, -1, -1, -1, -1]),
    )
    reasons.note(snapshot, decision)
    told = [reasons.all()[row] for row in range(2, 6)]
    assert told == [
        "needs 2 GPUs, 1 free on a100",
        "needs 2 GPUs, 2 free on k80, 1 on a100, 0 on v100",
        "needs 1 GPU, 0 free on v100",
        "needs 4 GPUs, 1 free on a100, 0 on v100",
    ]
    assert told == [decision.reason(snapshot, row) for row in range(2, 6)]


@pytest.mark.parametrize("reason", [one for one in Reason if one not in (Reason.RUNS, Reason.OTHER)])
def test_two_reasons_differ_before_a_list_cuts_them(reason: Reason) -> None:
    holders = ("job 12 (4 GPUs) is served first", "job 13 (2 GPUs) is served first")
    one, other = (
        reason_text(reason, gpus, 1, ahead, who) for gpus, ahead, who in zip((2, 4), "34", holders, strict=True)
    )
    assert one[:24] != other[:24]
