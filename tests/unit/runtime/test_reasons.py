"""What lists say of waiting jobs is what the policy says when it is asked."""

from __future__ import annotations

from fairway.core.decision import Reason, reason_text
from fairway.policies import make_policy
from fairway.runtime.jobs.waiting import GRANTED, Reasons
from fairway.testing import random_snapshot


def test_texts_are_those_of_the_decision() -> None:
    for seed in range(20):
        snapshot = random_snapshot(seed)
        for name in ("fifo", "las", "max_min_fairness", "capacity"):
            decision = make_policy(name).decide(snapshot)
            reasons = Reasons()
            reasons.note(snapshot, decision)
            told = reasons.all()
            for row, job in enumerate(snapshot.jobs.tolist()):
                assert told[job] == (GRANTED if decision.gpus[row] else decision.reason(snapshot, row))


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
    assert reason_text(Reason.NO_FREE_GPUS, 1, 0, "") == "needs 1 GPU; 0 are free"
    assert reason_text(Reason.NO_FREE_GPUS, 2, -1, "") == "needs 2 GPUs; 0 are free"
    assert reason_text(Reason.NO_FREE_GPUS, 2, 1, "") == "needs 2 GPUs; 1 is free"
