"""Whose iteration runs next: each order as Salus describes it, and the guard for the head of the line."""

from __future__ import annotations

from fairway.gpu.turns import MOST_BYPASSES, IterationOrder

TWO_LANES = {"a": 0, "b": 1, "c": 1}


def _order(name: str, **steps: float | None) -> IterationOrder:
    order = IterationOrder(name)  # type: ignore[arg-type]
    for job, left in steps.items():
        order.join(job, left)
    return order


def test_fifo_goes_on_with_the_first_job() -> None:
    order = _order("fifo", a=10, b=1)
    assert order.next({"a", "b"}, TWO_LANES, ()) == ["a"]
    order.note("a", 1.0)
    assert order.next({"a", "b"}, TWO_LANES, ()) == ["a"]
    order.leave("a")
    assert order.next({"b"}, TWO_LANES, ()) == ["b"]


def test_one_iteration_runs_at_a_time_unless_jobs_are_packed() -> None:
    assert _order("fifo", a=1, b=1).next({"a", "b"}, TWO_LANES, {0}) == []
    assert _order("pack", a=1, b=1, c=1).next({"a", "b", "c"}, TWO_LANES, ()) == ["a", "b"]
    assert _order("pack", a=1, b=1, c=1).next({"a", "b", "c"}, TWO_LANES, {1}) == ["a"]


def test_packed_jobs_of_one_lane_take_turns() -> None:
    order = _order("pack", a=9, b=9, c=9)
    started = [order.next({"a", "b", "c"}, TWO_LANES, ()) for _ in range(4)]
    assert [sorted(one) for one in started] == [["a", "b"], ["a", "c"], ["a", "b"], ["a", "c"]]


def test_srtf_prefers_the_least_remaining_time() -> None:
    order = _order("srtf", a=100, b=3, c=None)
    for job, took_s in (("a", 0.1), ("b", 2.0), ("c", 0.1)):
        order.note(job, took_s)
    assert order.sorted("abc") == ["b", "a", "c"]
    order.note("a", 0.1)
    order.note("b", 1000.0)
    assert order.sorted("abc") == ["a", "b", "c"]


def test_a_job_that_never_ran_is_tried_first_by_srtf() -> None:
    order = _order("srtf", a=10, b=10)
    order.note("a", 1.0)
    assert order.sorted("ab") == ["b", "a"]


def test_fair_prefers_the_least_memory_seconds() -> None:
    order = _order("fair", a=None, b=None)
    order.note("a", 1.0, memory_bytes=10)
    order.note("b", 3.0, memory_bytes=2)
    assert order.sorted("ab") == ["b", "a"]
    order.join("c")
    assert order.sorted("abc") == ["a", "b", "c"]


def test_others_run_while_the_first_has_no_lane() -> None:
    assert _order("fifo", a=1, b=1).next({"a", "b"}, {"b": 0}, ()) == ["b"]


def test_nothing_passes_the_first_more_than_fifty_times() -> None:
    order = _order("fifo", a=1, b=1000)
    started = [order.next({"a", "b"}, {"b": 0}, ()) for _ in range(MOST_BYPASSES + 2)]
    assert started == [["b"]] * MOST_BYPASSES + [[]] * 2
    assert order.next({"a", "b"}, {"a": 0, "b": 0}, ()) == ["a"]
    assert order.next({"b"}, {"b": 0}, ()) == ["b"]
