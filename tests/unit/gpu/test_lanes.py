"""Lanes: the worked examples of Salus' specification, and that the safety condition never breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.gpu.lanes import InLane, Lane, Lanes, Mode, Need, Waiting

GB = 10**9
A, B, D, E = (Need(p * GB, t * GB) for p, t in ((1, 6), (1, 6), (1, 4), (1, 9)))


def _fits(lane: Lane, jobs: dict[str, Need]) -> bool:
    lanes = Lanes(lane.size_bytes, "slide", resizes=False)
    lanes.lanes = {lane.number: Lane(lane.number, lane.size_bytes, jobs)}
    return lanes.is_safe()


def test_peaks_may_sum_to_more_than_a_lane_holds() -> None:
    """Example 1."""
    jobs = {"A": Need(1, 10), "B": Need(2, 6), "D": Need(1, 9)}
    assert _fits(Lane(0, 16), jobs)
    assert not _fits(Lane(0, 16), jobs | {"E": Need(2, 11)})


def test_lanes_of_exact_size_take_no_second_job() -> None:
    """Example 2."""
    lanes = Lanes(16 * GB, "slide", resizes=False)
    assert [lanes.request("A", A), lanes.request("B", B)] == [InLane(0, "opened"), InLane(1, "opened")]
    assert isinstance(lanes.request("D", D), Waiting)
    assert isinstance(lanes.request("E", E), Waiting)
    assert lanes.free_bytes == 2 * GB


def test_persistent_memory_outside_of_lanes_lets_a_third_job_join() -> None:
    """Example 3."""
    lanes = Lanes(16 * GB)
    assert lanes.request("A", A) == InLane(0, "opened")
    assert lanes.request("B", B) == InLane(1, "opened")
    assert lanes.request("D", D) == InLane(0, "joined")
    waits = lanes.request("E", E)
    assert waits == Waiting("it needs 1 GB and 9 GB in each iteration; 1 GB of 16 GB are free")
    assert lanes.used_bytes == 15 * GB


def test_42_inference_models_fit_on_a_gpu() -> None:
    """Example 4."""
    lanes = Lanes(15_700 * 10**6, most_lanes=2)
    for number in range(42):
        assert isinstance(lanes.request(str(number), Need(GB // 4, 2 * GB)), InLane)
    assert lanes.used_bytes == 14_500 * 10**6
    assert len(lanes.lanes) == 2


def test_the_smallest_lane_grows_for_a_job_that_fits_no_other_way() -> None:
    lanes = Lanes(10 * GB)
    lanes.request("A", Need(1 * GB, 3 * GB))
    lanes.request("B", Need(1 * GB, 2 * GB))
    assert lanes.request("E", Need(1 * GB, 4 * GB)) == InLane(1, "resized")
    assert lanes.is_safe()


def test_a_job_that_is_larger_than_the_gpu_is_told_so() -> None:
    lanes = Lanes(16 * GB)
    waits = lanes.request("A", Need(10 * GB, 7 * GB))
    assert isinstance(waits, Waiting)
    assert waits.forever


def test_jobs_that_wait_are_tried_in_the_order_in_which_they_came() -> None:
    lanes = Lanes(10 * GB)
    lanes.request("A", Need(5 * GB, 5 * GB))
    lanes.request("large", Need(9 * GB, 1 * GB))
    lanes.request("B", Need(2 * GB, 2 * GB))
    lanes.request("D", Need(2 * GB, 2 * GB))
    assert lanes.release("A") == {"large": InLane(0, "opened")}
    assert list(lanes.release("large")) == ["B", "D"]


def test_a_later_request_is_tried_if_an_earlier_one_does_not_fit() -> None:
    lanes = Lanes(10 * GB)
    lanes.request("A", Need(2 * GB, 2 * GB))
    lanes.request("B", Need(3 * GB, 3 * GB))
    lanes.request("large", Need(9 * GB, 1 * GB))
    lanes.request("D", Need(1 * GB, 4 * GB))
    assert list(lanes.release("A")) == ["D"]
    assert list(lanes.waiting) == ["large"]


def test_a_job_that_grows_past_its_lane_waits_before_all_others() -> None:
    lanes = Lanes(10 * GB)
    lanes.request("A", Need(2 * GB, 2 * GB))
    lanes.request("B", Need(2 * GB, 2 * GB))
    lanes.request("large", Need(9 * GB, 1 * GB))
    assert lanes.change("A", Need(2 * GB, 4 * GB)) == InLane(0, "resized")
    assert isinstance(lanes.change("A", Need(2 * GB, 7 * GB)), Waiting)
    assert list(lanes.waiting) == ["A", "large"]
    assert list(lanes.release("B")) == ["A"]


def test_a_job_is_admitted_once() -> None:
    lanes = Lanes(10 * GB)
    lanes.request("A", A)
    with pytest.raises(ValueError, match="A is here already"):
        lanes.request("A", A)


_NEED = st.builds(Need, st.integers(0, 6), st.integers(0, 9))
_CALLS = st.lists(st.tuples(st.sampled_from(["request", "release", "change"]), st.sampled_from("abcdefgh"), _NEED))


@given(_CALLS, st.sampled_from(["published", "slide"]), st.booleans(), st.sampled_from([None, 1, 3]))
def test_the_condition_never_breaks(
    calls: list[tuple[str, str, Need]], mode: Mode, resizes: bool, most_lanes: int | None
) -> None:
    lanes, here = Lanes(16, mode, resizes=resizes, most_lanes=most_lanes), set[str]()
    for call, job, need in calls:
        if call == "request" and job not in here:
            here.add(job)
            lanes.request(job, need)
        elif call == "release":
            here.discard(job)
            lanes.release(job)
        elif call == "change" and job in here:
            lanes.change(job, need)
        assert lanes.is_safe()
        in_lanes = [one for lane in lanes.lanes.values() for one in lane.jobs]
        assert sorted([*in_lanes, *lanes.waiting]) == sorted(here)
        assert all(lane.jobs for lane in lanes.lanes.values())
        assert most_lanes is None or len(lanes.lanes) <= most_lanes


@given(_CALLS)
def test_nobody_waits_beside_an_empty_gpu(calls: list[tuple[str, str, Need]]) -> None:
    lanes, here = Lanes(16), set[str]()
    for call, job, need in calls:
        if call == "release":
            here.discard(job)
            lanes.release(job)
        elif job not in here:
            here.add(job)
            lanes.request(job, need)
    if not lanes.lanes:
        assert all(lanes.why(job).forever for job in lanes.waiting)
