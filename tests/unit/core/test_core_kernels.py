"""The inner loops in their two forms, NumPy and the plain loop that Numba compiles, decide the same to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fairway.core import kernels
from fairway.core.check import check
from fairway.core.errors import PolicyError
from fairway.core.event import RegimeEntered
from fairway.policies import make_policy, policies
from fairway.testing import job, random_snapshot, state_of
from fairway.testing.contract import decision_digest
from fairway.testing.seeds import some


@pytest.fixture
def restored() -> Iterator[None]:
    """Kernels stand as before again afterwards."""
    before = [(kernel, kernel.__globals__[kernel.__name__]) for kernel, _ in kernels._LOOPS]
    in_use = kernels._in_use
    yield
    kernels._in_use = in_use
    for kernel, form in before:
        kernel.__globals__[kernel.__name__] = form


def _as_written() -> None:
    kernels._in_use = False
    for kernel, _ in kernels._LOOPS:
        kernel.__globals__[kernel.__name__] = kernel


def _decisions() -> list[str]:
    found = []
    for name in sorted(policies()):
        policy = make_policy(name)
        for seed in some(range(24), 6):
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
    _as_written()
    decisions, verdicts = _decisions(), _verdicts()
    assert len(set(verdicts)) > 20
    for kernel, loop in kernels._LOOPS:
        kernel.__globals__[kernel.__name__] = loop
    assert _decisions() == decisions
    assert _verdicts() == verdicts


def test_what_numba_compiles_agrees_with_numpy(restored: None) -> None:
    pytest.importorskip("numba")
    _as_written()
    decisions, verdicts = _decisions(), _verdicts()
    assert kernels.use_compiled()
    for kernel, _ in kernels._LOOPS:
        assert hasattr(kernel.__globals__[kernel.__name__], "py_func")
    assert _decisions() == decisions
    assert _verdicts() == verdicts


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("progress", [40.0, 100.0])
def test_work_that_no_gpus_can_do_now_is_not_done_in_any_time(restored: None, compiled: bool, progress: float) -> None:
    """A machine came back with fewer GPUs than the gang of a job. It goes on when they are there again."""
    _as_written()
    if compiled:
        pytest.importorskip("numba")
        assert kernels.use_compiled()
    state = state_of([job("a", 2, 100.0)], "v100:2")
    state.apply(RegimeEntered(1.0, 0, progress, 0.0, 1, (0.0,), 100.0, 0.0))
    assert state.snapshot(frozenset({"duration"})).oracle.remaining_s[0] == np.inf
    state.apply(RegimeEntered(2.0, 0, progress, 0.0, 1, (2.0,), 100.0, 0.0))
    assert state.snapshot(frozenset({"duration"})).oracle.remaining_s[0] == (100.0 - progress) / 2.0


def test_a_kernel_that_comes_late_is_compiled_too(restored: None) -> None:
    pytest.importorskip("numba")
    assert kernels.use_compiled()

    def twice(x: float) -> float:
        return 2.0 * x

    made = kernels.compiled(twice)
    kernels._LOOPS.pop()
    assert hasattr(made, "py_func")
    assert made(1.5) == 3.0
