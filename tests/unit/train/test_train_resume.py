"""A preempted job that is resumed from a state in JSON goes on as if nothing had happened."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.train import (
    AccordionSchedule,
    ConsecutiveNoiseEstimator,
    CriticalRegime,
    LayerRegimes,
    NoiseEstimator,
    NoiseScaleSchedule,
    ReplicaNoiseEstimator,
)

NUMBERS = st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf])
STREAMS = st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from([4, 8]), st.integers(1, 5)), max_size=30)
MAKERS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "norms": (NoiseEstimator, lambda it, step: it.observe_norms(step[0], step[1], step[2], step[2] * step[3])),
    "replicas": (ReplicaNoiseEstimator, lambda it, step: it.observe([step[:2], (step[1], 1.0)], step[2])),
    "steps": (ConsecutiveNoiseEstimator, lambda it, step: it.observe(step[:2], step[2])),
    "regime": (lambda: CriticalRegime(interval=2), lambda it, step: it.end_epoch(step[0])),
    "layers": (lambda: LayerRegimes(2, interval=2), lambda it, step: it.end_epoch(step[:2])),
    "accordion": (lambda: AccordionSchedule(8, 64, interval=3), lambda it, step: it.end_epoch(step[0])),
    "gns": (lambda: NoiseScaleSchedule(interval=2), lambda it, step: it.end_epoch(step[0])),
}


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return found


@pytest.mark.parametrize("kind", MAKERS)
@given(stream=STREAMS, data=st.data())
def test_a_resumed_run_goes_on_as_an_uninterrupted_one(kind: str, stream: list[Any], data: st.DataObject) -> None:
    make, feed = MAKERS[kind]
    cut = data.draw(st.integers(0, len(stream)))
    whole, resumed = make(), make()
    for step in stream[:cut]:
        feed(whole, step)
    resumed.restore(through_json(whole.state()))
    assert resumed.state() == whole.state()
    if kind == "steps":
        # The last gradient is too large to be kept, so the pair across the interruption is lost, and nothing else.
        whole.start_anew()
    for step in stream[cut:]:
        assert feed(resumed, step) == feed(whole, step)
        assert resumed.state() == whole.state()


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_of_something_else_is_refused_and_changes_nothing(kind: str) -> None:
    make, feed = MAKERS[kind]
    it = make()
    feed(it, (3.0, 2.0, 8, 4))
    before = it.state()
    for state in ({}, {"kind": "other"}, {"kind": it.kind}):
        with pytest.raises(ValueError, match="state"):
            it.restore(state)
    assert it.state() == before


def test_estimates_survive_an_interruption() -> None:
    before, after = NoiseEstimator(), NoiseEstimator()
    before.observe_norms(10.0, 4.0, 32, 128)
    after.restore(through_json(before.state()))
    assert after.noise == before.noise is not None


def test_a_restored_estimator_pairs_nothing_with_what_it_saw_before() -> None:
    estimator = ConsecutiveNoiseEstimator()
    estimator.observe([1.0, 2.0], 8)
    estimator.restore(through_json(estimator.state()))
    assert not estimator.observe([1.0, 2.0], 8)
    assert estimator.observe([1.0, 2.0], 8)
