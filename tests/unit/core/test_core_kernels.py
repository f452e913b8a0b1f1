"""The inner loops in their two forms, NumPy and the plain loop that Numba compiles, decide the same to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fairway.core import kernels
from fairway.core.check import check
from fairway.core.errors import PolicyError
from fairway.policies import make_policy, policies
from fairway.testing import random_snapshot
from fairway.testing.contract import decision_digest


@pytest.fixture
def restored() -> Iterator[None]:
    """Whatever form is in use is in use again afterwards."""
    before = {name: getattr(kernels, name) for name in kernels._LOOPS}
    yield
    vars(kernels).update(before)


def _decisions() -> list[str]:
    found = []
    for name in sorted(policies()):
        policy = make_policy(name)
        for seed in range(24):
            view = random_snapshot(seed, knows=policy.knows)
            decision = policy.decide(view)
            check(view, decision)
            found.append(decision_digest(decision))
    return found


def _verdicts() -> list[str]:
    """What the check says of decisions that are spoilt at random."""
    said = []
    for seed in range(200):
        view, random = random_snapshot(seed, mixed=False), np.random.default_rng(seed)
        decision = make_policy("srtf").decide(view)
        if len(view):
            row = int(random.integers(len(view)))
            decision.gpus[row] += int(random.integers(-2, 3))
            decision.reasons[row] = int(random.choice([0, 0, 1, 8, 9]))
        try:
            check(view, decision)
            said.append("fine")
        except PolicyError as error:
            said.append(str(error))
    return said


def test_the_plain_loops_agree_with_numpy(restored: None) -> None:
    kernels.use_numpy()
    decisions, verdicts = _decisions(), _verdicts()
    assert len(set(verdicts)) > 20
    vars(kernels).update(kernels._LOOPS)
    assert _decisions() == decisions
    assert _verdicts() == verdicts


def test_the_compiled_loops_agree_with_numpy(restored: None) -> None:
    pytest.importorskip("numba")
    kernels.use_numpy()
    decisions, verdicts = _decisions(), _verdicts()
    assert kernels.use_compiled()
    assert kernels.in_order is not kernels._in_order_numpy
    assert _decisions() == decisions
    assert _verdicts() == verdicts
