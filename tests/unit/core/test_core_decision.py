"""A decision is a value: what follows from it is another one."""

from __future__ import annotations

import numpy as np
import pytest

from fairway.core.decision import Decision, Reason, nothing_granted
from fairway.core.texts import Texts, over
from fairway.policies import make_policy
from fairway.testing import job, snapshot_of
from fairway.testing.harness import Sealed


def shared() -> Decision:
    """Row 1 is a throttled guest of row 0, row 2 is placed, row 3 waits."""
    return Decision(
        np.array([2, 2, 1, 0]),
        np.array([0, 0, 0, int(Reason.BEHIND)], dtype=np.int8),
        wake_s=50.0,
        partners={1: 0},
        placements={0: (0, 1), 2: (3,)},
        throttles={1: 0.5},
        texts={3: "behind row 2"},
    )


def test_nothing_is_assigned_to_a_decision() -> None:
    with pytest.raises(AttributeError):
        shared().wake_s = 3.0  # type: ignore[misc]


def test_runs_under_test_seal_decisions() -> None:
    snapshot = snapshot_of([job("a", 2)], "v100:2")
    decision = Sealed(make_policy("fifo")).decide(snapshot)
    with pytest.raises(ValueError, match="read-only"):
        decision.gpus[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        decision.reasons[0] = 1


def test_the_guests_of_a_row_that_is_withdrawn_wait_with_it() -> None:
    before = shared()
    after = before.without([0], Reason.NO_PLACEMENT)
    assert after.gpus.tolist() == [0, 0, 1, 0]
    assert after.reasons.tolist() == [Reason.NO_PLACEMENT, Reason.NO_PLACEMENT, 0, Reason.BEHIND]
    assert (after.partners, after.placements, after.throttles) == ({}, {2: (3,)}, {})
    assert (after.wake_s, dict(after.texts)) == (50.0, {3: "behind row 2"})
    assert before.gpus.tolist() == [2, 2, 1, 0]
    assert before.partners == {1: 0}


def test_a_host_stays_when_its_guest_is_withdrawn() -> None:
    after = shared().without([1], texts={1: "it slowed its host", 3: "behind row 1"})
    assert after.gpus.tolist() == [2, 0, 1, 0]
    assert (after.placements, after.partners) == ({0: (0, 1), 2: (3,)}, {})
    assert dict(after.texts) == {1: "it slowed its host", 3: "behind row 1"}


def test_the_earlier_wake_up_counts() -> None:
    assert (shared().waking(40.0).wake_s, shared().waking(60.0).wake_s) == (40.0, 50.0)
    assert nothing_granted(1).remembering({"turn": 3}).memory == {"turn": 3}


def test_texts_are_put_into_words_when_somebody_asks() -> None:
    asked: list[int] = []

    def say(row: int) -> str:
        asked.append(row)
        return f"row {row}"

    texts = over({1: "said"}, Texts(np.array([1, 4]), say))
    assert (list(texts), len(texts), 4 in texts, asked) == ([1, 4], 2, True, [])
    assert (texts[1], texts[4], 2 in texts) == ("said", "row 4", False)
