"""The snapshot: read-only, independent once copied, and the same after a trip through JSON."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.action import Launch, Suspend
from fairway.core.columns import FLOATS, INTS, JobTable
from fairway.core.errors import InputError, PolicyError
from fairway.core.event import JobFinished, Woken
from fairway.core.snapshot import Snapshot
from fairway.core.snapshot_json import from_json, to_json
from fairway.testing import job, random_snapshot, snapshot_of, state_of
from fairway.testing.strategies import snapshots

COLUMNS = ("submitted_s", "weight", "deadline_s", "rate", "gpus", "held", "jobs", "speeds", "host", "launches")


@given(view=snapshots())
def test_json_gives_an_equal_snapshot_back(view: Snapshot) -> None:
    again = from_json(to_json(view))
    for name in (*COLUMNS, "attained_s", "attained_gpu_s", "progress", "capacity"):
        assert np.array_equal(getattr(again, name), getattr(view, name)), name
    assert to_json(again) == to_json(view)
    assert (again.now_s, again.seed, again.round, again.knows) == (view.now_s, view.seed, view.round, view.knows)
    for row in range(len(view)):
        assert again.job(row) == view.job(row)
        assert again.gpus_held(row) == view.gpus_held(row)


def test_a_snapshot_without_jobs_goes_through_json() -> None:
    empty = state_of([], "v100:2x4,k80:3").snapshot()
    again = from_json(to_json(empty))
    assert len(again) == 0
    assert again.capacity.tolist() == [8, 3]
    assert again.speeds.shape == (2, 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fairway_snapshot": 1}', "null", '{"fairway_snapshot": 2}', "\x00"])
def test_what_is_no_snapshot_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        from_json(text)


def test_memory_goes_through_json_with_arrays_as_lists() -> None:
    view = snapshot_of([job()], "v100:4", memory={"deficit": np.array([1.0, 1 / 3]), "turn": np.int64(3), "t": (1, 2)})
    assert from_json(to_json(view)).memory == {"deficit": [1.0, 1 / 3], "turn": 3, "t": [1, 2]}


@pytest.mark.parametrize("name", [*COLUMNS, "capacity"])
def test_columns_cannot_be_written_to(name: str) -> None:
    state = state_of([job("a", 2), job("b", 1)], "v100:4", running={"a": 2})
    for view in (state.snapshot(), state.snapshot().copy()):
        with pytest.raises(ValueError, match="read-only"):
            getattr(view, name)[...] = 1


def test_a_copy_does_not_change_when_the_state_does() -> None:
    state = state_of([job("a", 2), job("b", 1)], "v100:4", running={"a": 2})
    live, copy = state.snapshot(), state.snapshot().copy()
    text = to_json(copy)
    state.apply(Woken(10.0))
    state.commit([Suspend(0), Launch(1, (0,), 0)])
    state.apply(JobFinished(20.0, 0))
    assert to_json(copy) == text
    assert copy.held.tolist() == [2, 0]
    assert copy.job_id(0) == "a"
    assert copy.gpus_held(0) == (0, 1)
    assert live.held.tolist() != [2, 0]


def test_the_oracle_opens_only_to_those_who_declare_it() -> None:
    with pytest.raises(PolicyError, match="knows"):
        _ = snapshot_of([job()], "v100:4", knows=()).oracle
    assert snapshot_of([job(duration_s=7.0)], "v100:4").oracle.total_s.tolist() == [7.0]


def test_remaining_time_counts_the_speed_of_the_gpus_that_a_job_holds() -> None:
    state = state_of([job("a", 1, 100.0)], "v100:1,k80:1", running={"a": (1,)})
    slow = float(state.snapshot().speeds[1, 0])
    state.apply(Woken(10.0))
    remaining = state.snapshot(frozenset({"duration"})).oracle.remaining_s[0]
    assert slow < 1
    assert remaining == pytest.approx(100.0 - 10.0 * slow)


@given(seed=st.integers(0, 10**6))
def test_random_snapshots_are_sound(seed: int) -> None:
    view = random_snapshot(seed)
    assert to_json(view) == to_json(random_snapshot(seed))
    held = [gpu for row in range(len(view)) for gpu in view.gpus_held(row)]
    assert len(held) == len(set(held)) == view.held.sum()
    assert (view.oracle.remaining_s >= 0).all()
    assert (view.speeds.max(axis=0) > 0).all() if len(view) else True


@given(data=st.data())
def test_the_table_behaves_like_a_list_of_rows(data: st.DataObject) -> None:
    table, model, number = JobTable(2, capacity=2), list[int](), 0
    for _ in range(data.draw(st.integers(0, 40))):
        if model and data.draw(st.booleans()):
            job = data.draw(st.sampled_from(model))
            table.remove(table.position(job))
            model.remove(job)
        else:
            table.append([number / 3] * (len(FLOATS) + 2), [number] * len(INTS))
            model.append(number)
            number += 1
        floats, ints = table.window()
        assert table.n == len(model)
        assert ints.tolist() == [model] * len(INTS)
        assert floats.tolist() == [[job / 3 for job in model]] * (len(FLOATS) + 2)
        for job in range(number):
            at = table.position(job)
            assert (at >= 0) == (job in model)
            assert at < 0 or table.i[0, at] == job
