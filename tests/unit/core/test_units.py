"""Durations and sizes as people write them, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.core.units import clock_s, duration_s, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("5ms", 0.005),
        ("1s500ms", 1.5),
        ("30m", 1800),
        ("30min", 1800),
        ("2h", 7200),
        ("1.5h", 5400),
        ("2 hours", 7200),
        ("1h30m", 5400),
        ("1d12h", 129600),
        ("1w", 604800),
        ("30:00", 1800),
        ("12:00:00", 43200),
        ("1-12", 129600),
        ("1-12:00:00", 129600),
        ("2-00:30", 174600),
        (" 2H ", 7200),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "h", "2x", "-5", "1h30", "1:2:3:4", "1-", "nan", "inf", "1e3", "2h later", "0x10"]
)
def test_other_durations_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="is not a duration") as caught:
        duration_s(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-0", 86400), ("1-2:30", 95400), ("0", 0)]
)
def test_slurm_counts_bare_numbers_as_minutes(text: str, seconds: float) -> None:
    assert clock_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("16G", 16 << 30), ("16GB", 16 << 30), ("16GiB", 16 << 30), ("512m", 512 << 20), ("1.5T", 3 << 39)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "16", "G", "-1G", "16 X", "1e3G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a size"):
        size_bytes(text)


@given(st.text(max_size=30))
def test_no_text_breaks_a_reader(text: str) -> None:
    for read in (duration_s, clock_s, size_bytes):
        with suppress(InputError):
            read(text)
