"""Numbers with units as people write them, and what is refused."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import Dependency
from fairway.submission import quantities as q

NOON = datetime(2026, 3, 4, 12, 0, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1", (1, 1, "", 1.0)),
        ("1-4", (1, 4, "", 1.0)),
        ("1:4", (1, 4, "", 1.0)),
        ("a100:2", (2, 2, "a100", 1.0)),
        ("h100:1-8", (1, 8, "h100", 1.0)),
        ("0.5", (1, 1, "", 0.5)),
        (".25", (1, 1, "", 0.25)),
        ("1.0", (1, 1, "", 1.0)),
        ("a100:0.125", (1, 1, "a100", 0.125)),
    ],
)
def test_gpus_are_read(text: str, read: tuple[int, int, str, float]) -> None:
    assert q.gpus(text) == read


@pytest.mark.parametrize("text", ["0.0", "1.5", "-0.5", "2.0", "0.0001", "a100:1.5"])
def test_a_share_is_of_one_gpu(text: str) -> None:
    with pytest.raises(InputError, match=r"not a share of one GPU; it must be from 0\.001 to 1"):
        q.gpus(text)


@pytest.mark.parametrize("text", ["nan", "inf", ".", "0.5-1", "1e-1", "0,5"])
def test_what_is_no_share_is_an_error(text: str) -> None:
    with pytest.raises(InputError):
        q.gpus(text)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "4-1", "1-", "two", "1.5", "1-4-8", "a100:", ":4", "9999999", "$(x):1"]
)
def test_other_gpus_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        q.gpus(text)


@pytest.mark.parametrize(
    ("text", "tasks", "at_once"),
    [
        ("0-9", tuple(range(10)), 0),
        ("0-9%3", tuple(range(10)), 3),
        ("1,3,5-7", (1, 3, 5, 6, 7), 0),
        ("0-20:10", (0, 10, 20), 0),
        ("7", (7,), 0),
        ("5,1", (5, 1), 0),
    ],
)
def test_arrays_are_read(text: str, tasks: tuple[int, ...], at_once: int) -> None:
    assert q.array(text) == (tasks, at_once)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-9%", "0-9%0", "0-9%x", "1,1", "0-5,3", "0-9:0", "0-100000", "1,,2", "-1", "0-999999999"]
)
def test_other_arrays_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="array"):
        q.array(text)


def test_dependencies_are_read() -> None:
    read = q.dependencies(["afterok:12:13,afterany:14_3", "15"])
    pairs = [("afterok", "12"), ("afterok", "13"), ("afterany", "14_3"), ("afterok", "15")]
    assert read == tuple(Dependency(kind, job) for kind, job in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "after:1", "afterok:", "afterok:x", "afterok:1+5", "afterok:1?afterok:2", "singleton"]
)
def test_other_dependencies_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="dependency"):
        q.dependencies([text])


@pytest.mark.parametrize(
    ("text", "ahead"),
    [
        ("now", timedelta()),
        ("30m", timedelta(minutes=30)),
        ("now+1hour", timedelta(hours=1)),
        ("16:00", timedelta(hours=4)),
        ("08:30", timedelta(hours=20, minutes=30)),
        ("2026-03-05T12:00", timedelta(days=1)),
        ("2026-03-05", timedelta(hours=12)),
    ],
)
def test_instants_are_read(text: str, ahead: timedelta) -> None:
    assert q.instant_s(text, NOON) == pytest.approx((NOON + ahead).timestamp())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrowish",
        "25:00",
        "12:60",
        "9:5",
        "90:00",
        "16:00:61",
        "2026-13-01",
        "2026-01-01T99:00",
        "25:00:00:00",
        "now+",
        "now+x",
    ],
)
def test_other_instants_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        q.instant_s(text, NOON)


@given(st.text(max_size=30))
def test_no_text_breaks_a_reader(text: str) -> None:
    for read in (q.gpus, q.array, lambda one: q.dependencies([one]), q.variable):
        with suppress(InputError):
            read(text)
    with suppress(InputError):
        q.instant_s(text, NOON)


def test_variables_are_read() -> None:
    assert q.variable("A_1=b=c d") == ("A_1", "b=c d")
    for bad in ("A", "=x", "1A=x", "A B=x"):
        with pytest.raises(InputError, match="NAME=value"):
            q.variable(bad)


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("2h", timedelta(hours=2)),
        ("1-12:00:00", timedelta(hours=36)),
        ("11:30", timedelta(minutes=30)),
        ("11:30:00", timedelta(minutes=30)),
        ("12:00", timedelta(0)),
        ("16:00", timedelta(hours=20)),
        ("0:05", timedelta(hours=11, minutes=55)),
    ],
)
def test_times_that_have_been(text: str, back: timedelta) -> None:
    """A time of day is the last one: one that is later than now was yesterday."""
    assert q.past_s(text, NOON) == pytest.approx((NOON - back).timestamp())


def test_a_date_that_has_been() -> None:
    assert q.past_s("2026-01-31", NOON) == q.instant_s("2026-01-31", NOON)
    with pytest.raises(InputError, match="is not a time"):
        q.past_s("yesterday", NOON)


@pytest.mark.parametrize("text", ["5000", "1-5000", "99999999999999999999", "1-" + "9" * 5000])
def test_too_many_gpus_are_said_to_be_too_many(text: str) -> None:
    with pytest.raises(InputError, match="is too large; it must be at most 4096") as caught:
        q.gpus(text)
    assert len(str(caught.value)) < 150


def test_zeros_before_a_number_do_not_make_it_large() -> None:
    assert q.gpus("00000004")[:3] == (4, 4, "")
