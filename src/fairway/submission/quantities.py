"""GPU counts, arrays, dependencies and dates as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from fairway.core.errors import InputError
from fairway.core.units import duration_s
from fairway.runtime.jobs.request import DEPENDENCIES, MOST_GPUS, MOST_TASKS, Dependency

_TASK_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_JOB_ID = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?")
_GPU_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_. -]{0,60}")
_FRACTION = re.compile(r"[-+]?(?:[0-9]+[.][0-9]*|[.][0-9]+)")
LEAST_SHARE = 0.001
_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}.*")


class Gpus(NamedTuple):
    """A number of GPUs, a range of them, or a share of one; perhaps of one type."""

    least: int
    most: int
    type: str = ""
    share: float = 1.0

    def times(self, low: int, high: int) -> Gpus:
        """The GPUs of `low` to `high` such nodes together."""
        return Gpus(self.least * low, self.most * high, self.type, self.share)


def gpus(text: str) -> Gpus:
    """`4`, the elastic range `1-4`, the share `0.5` of one GPU, and `a100:4` with a type."""
    kind, colon, number = text.strip().rpartition(":")
    if colon and kind.isdigit():
        kind, colon, number = "", "", f"{kind}-{number}"
    part = share(number, what="--gpus")
    low, high = count_range(number, what="--gpus", separators="-") if part is None else (1, 1)
    if colon and not _GPU_TYPE.fullmatch(kind):
        raise InputError(f"--gpus {text!r}: {kind!r} is not a GPU type")
    return Gpus(low, high, kind, 1.0 if part is None else part)


def share(text: str, *, what: str) -> float | None:
    """The share of one GPU that a decimal fraction such as `0.5` asks for; None if the text is something else."""
    if not _FRACTION.fullmatch(text.strip()):
        return None
    part = float(text)
    if not LEAST_SHARE <= part <= 1:
        raise InputError(f"{what} {text!r} is not a share of one GPU; it must be from {LEAST_SHARE} to 1")
    return part


def count_range(text: str, *, what: str, separators: str = "-:") -> tuple[int, int]:
    """`4` or `1-4`; at least 1."""
    found = re.fullmatch(rf"([0-9]+)(?:[{re.escape(separators)}]([0-9]+))?", text.strip())
    if found is not None and any(len(number.lstrip("0")) > 6 for number in found.groups("")):
        raise InputError(f"{what} {text[:40]!r} is too large; it must be at most {MOST_GPUS}")
    if found is None:
        raise InputError(f"{what} {text!r} is neither a number, like 4, nor a range, like 1{separators[0]}4")
    low = int(found[1])
    high = low if found[2] is None else int(found[2])
    if high > MOST_GPUS:
        raise InputError(f"{what} {text!r} is too large; it must be at most {MOST_GPUS}")
    if low < 1:
        raise InputError(f"{what} {text!r} is too small; it must be at least 1")
    if high < low:
        raise InputError(f"{what} {text!r}: the smaller number comes first")
    return low, high


class Array(NamedTuple):
    """The numbers of the tasks of an array, and how many of them may run at a time (0: no limit)."""

    tasks: tuple[int, ...]
    at_once: int = 0


def array(text: str) -> Array:
    """`0-9`, `1,3,5-7`, `0-20:4`, and `0-9%3` for at most three at a time."""
    listed, percent, most = text.strip().partition("%")
    if percent and not (re.fullmatch(r"[0-9]{1,9}", most) and int(most) >= 1):
        raise InputError(f"array {text!r}: after % comes the number of tasks that may run at a time")
    tasks: list[int] = []
    for part in listed.split(","):
        found = _TASK_RANGE.fullmatch(part.strip())
        if found is None:
            raise InputError(f"array {text!r} is not written like 0-9, 1,3,5-7, 0-20:4 or 0-9%3")
        low, high, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if high < low or step < 1:
            raise InputError(f"array {text!r}: {part.strip()!r} has no tasks; the smaller number comes first")
        if (high - low) // step + len(tasks) >= MOST_TASKS:
            raise InputError(f"array {text!r} has more than {MOST_TASKS:,} tasks")
        tasks += range(low, high + 1, step)
    if len(set(tasks)) < len(tasks):
        raise InputError(f"array {text!r} has a task twice")
    return Array(tuple(tasks), int(most or 0))


def dependencies(texts: Sequence[str]) -> tuple[Dependency, ...]:
    """`afterok:12`, `afterok:12:13,afterany:14_3`; a bare id means afterok."""
    found: list[Dependency] = []
    for text in texts:
        for part in text.split(","):
            kind, colon, ids = part.strip().partition(":")
            if not colon:
                kind, ids = "afterok", kind
            known = next((one for one in DEPENDENCIES if one == kind), None)
            if known is None:
                raise InputError(f"dependency {text!r}: {kind!r} is not one of {', '.join(DEPENDENCIES)}")
            for name in ids.split(":"):
                if not _JOB_ID.fullmatch(name):
                    raise InputError(f"dependency {text!r}: {name!r} is no job id, like 12 or 12_3")
                found.append(Dependency(known, name))
    return tuple(found)


def instant_s(text: str, now: datetime) -> float:
    """A time in seconds since 1970: `30m` and `now+30m` from now, `16:00`, `2026-01-31`, `2026-01-31T16:00`."""
    plain = text.strip()
    if plain.lower() in ("now", "today"):
        return now.timestamp()
    if plain.lower().startswith("now+"):
        return now.timestamp() + duration_s(plain[4:])
    clock = _TIME_OF_DAY.fullmatch(plain)
    if clock is None and re.fullmatch(r"[0-9]+:[0-9]+(?::[0-9]+)?", plain):
        # In durations 30:00 is half an hour; here it can only be a mistake.
        raise InputError(f"{text!r} is not a time of day; write 16:00, or now+{plain} for a duration")
    if clock is not None:
        at = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0)
        return (at if at > now else at + timedelta(days=1)).timestamp()
    if _DATE.fullmatch(plain):
        try:
            return datetime.fromisoformat(plain).astimezone().timestamp()
        except (ValueError, OverflowError, OSError):
            raise InputError(f"{text!r} is no date; write 2026-01-31 or 2026-01-31T16:00") from None
    try:
        return now.timestamp() + duration_s(plain)
    except InputError:
        raise InputError(f"{text!r} is not a time; write 30m, 16:00, 2026-01-31 or 2026-01-31T16:00") from None


def past_s(text: str, now: datetime) -> float:
    """A time in the past, in seconds since 1970: `2h` ago, the last time that it was `16:00`, or a date."""
    if _TIME_OF_DAY.fullmatch(text.strip()):
        return instant_s(text, now - timedelta(days=1))
    try:
        return max(now.timestamp() - duration_s(text), 0.0)
    except InputError:
        return max(instant_s(text, now), 0.0)


def variable(text: str) -> tuple[str, str]:
    """`NAME=value`."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(f"{text!r} is not written like NAME=value")
    return name, value
