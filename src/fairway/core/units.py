"""Durations and sizes as people write them on the command line, in the configuration and in scripts; and limits."""

from __future__ import annotations

import re

from fairway.core.errors import InputError

MOST_SECONDS = 4e9
"""Times beyond this (a hundred years and more) are mistakes, and too large to be exact to the microsecond."""
MOST_PRIORITY = 1_000_000_000
_SECONDS = (1.0, 60.0, 3600.0, 86400.0, 604800.0, 0.001)
_UNIT = re.compile(
    r"(s|sec|secs|second|seconds)|(m|min|mins|minute|minutes)|(h|hr|hrs|hour|hours)|(d|day|days)|(w|week|weeks)"
    r"|(ms|msec|msecs|millisecond|milliseconds)"
)
_PART = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]+)")
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_SIZE = re.compile(r"([0-9]*\.?[0-9]+)\s*([kmgt])(?:i?b)?", re.IGNORECASE)


def duration_s(text: str) -> float:
    """Seconds: `90`, `5ms`, `30m`, `1h30m`, `1.5 days`, `12:00:00` (hours first), `30:00` (minutes), `1-12:00:00`."""
    plain = text.strip().lower()
    if re.fullmatch(r"[0-9]*\.?[0-9]+", plain):
        return float(plain)
    parts = _in_parts(plain)
    if parts is not None:
        return parts
    if ":" in plain or re.fullmatch(r"[0-9]+-[0-9]+", plain):
        clock = clock_s(plain)
        if clock is not None:
            return clock
    raise InputError(f"{text[:60]!r} is not a duration; write 90, 30m, 2h, 1h30m, 12:00:00 or 1-12:00:00")


def _in_parts(text: str) -> float | None:
    """`1h30m` and the like; None if it is not made of numbers with units."""
    total, at = 0.0, 0
    while at < len(text):
        found = _PART.match(text, at)
        unit = found and _UNIT.fullmatch(found[2])
        if not found or not unit:
            return None
        total += float(found[1]) * _SECONDS[(unit.lastindex or 1) - 1]
        at = found.end()
    return total if at else None


def clock_s(text: str) -> float | None:
    """Slurm's notation: `D-H`, `D-H:M`, `D-H:M:S`, `H:M:S`, `M:S`, or a bare number of minutes; None if it is none."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    days, *rest = (None if part is None else float(part) for part in found.groups())
    first, second, third = rest
    assert first is not None
    if days is not None:
        return days * 86400 + first * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return first * 3600 + (second or 0) * 60 + third
    return first * 60 + (second or 0)


def size_bytes(text: str) -> int:
    """Bytes: `16G`, `16GB` and `16GiB` are all 16 × 2³⁰."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text[:60]!r} is not a size; write 512M or 16G")
    return int(float(found[1]) * (1 << 10 * "bkmgt".index(found[2].lower())))
