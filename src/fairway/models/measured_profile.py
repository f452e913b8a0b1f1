"""What live jobs were measured to do: their speeds alone, and what two of them keep of these on the same GPUs.

A live scheduler notes both here and keeps them on disk. `document` writes them in the format of Gavel's throughput
files, so that a simulation can read what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from fairway.core.errors import InputError
from fairway.core.pairing import Factors
from fairway.models.gavel_profile import ALONE, RATE_MAX, RATE_MIN
from fairway.models.names import ProfileKey

VERSION = 1
MOST_SPEEDS = 1000
MOST_PAIRS = 1000
"""How many kinds of jobs, and how many pairs of them, are kept. The one that was measured longest ago goes first."""
WEIGHT = 0.3
"""The weight of a new measurement against the mean of the earlier ones."""
TIME_SLICING = "time-slicing"
"""Two processes on one GPU, and the driver lets them take turns."""


class MeasuredSpeed(NamedTuple):
    """Steps per second over all GPUs of a gang, how often that was measured, and when it was measured last."""

    rate: float
    times: int
    date_s: float


class PairKept(NamedTuple):
    """What two jobs keep of their speeds beside each other, how often that was measured, and when last."""

    first: float
    second: float
    times: int
    date_s: float


class MeasuredKind(NamedTuple):
    """A kind of job on a GPU type."""

    gpu_type: str
    key: ProfileKey


class MeasuredPair(NamedTuple):
    """Two kinds of jobs on GPUs of one type, and how they share them. `a` is not behind `b`."""

    gpu_type: str
    sharing: str
    a: ProfileKey
    b: ProfileKey


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class MeasuredProfile:
    """The speeds and the pairs that were measured.

    `changed` says that something was measured, and `news` that a kind or a pair is new, since the owner
    set them to False.
    """

    def __init__(self) -> None:
        self.speeds: dict[MeasuredKind, MeasuredSpeed] = {}
        self.pairs: dict[MeasuredPair, PairKept] = {}
        self.changed = False
        self.news = False
        self._latest: dict[tuple[str, ProfileKey, ProfileKey], PairKept] | None = None
        self._paired: set[ProfileKey] = set()
        self._by_model: dict[str, list[tuple[str, ProfileKey, float]]] | None = None

    def note_speed(self, gpu_type: str, key: ProfileKey, rate: float, date_s: float) -> None:
        """A job of a kind was measured alone."""
        if not RATE_MIN <= rate <= RATE_MAX:
            return
        place = MeasuredKind(gpu_type, key)
        known = self.speeds.get(place)
        self.news |= known is None
        speed = (
            MeasuredSpeed(rate, 1, date_s)
            if known is None
            else MeasuredSpeed(_mean(known.rate, rate), known.times + 1, date_s)
        )
        self._put(self.speeds, place, speed, MOST_SPEEDS)

    def note_pair(
        self, gpu_type: str, a: ProfileKey, b: ProfileKey, kept: tuple[float, float], date_s: float, sharing: str
    ) -> None:
        """Two jobs were measured on the same GPUs: `kept` is what each had of its speed alone."""
        first, second = (min(max(one, 0.0), 1.0) for one in kept)
        if a == b:
            first = second = (first + second) / 2
        pair, (x, y) = _ordered(gpu_type, sharing, a, b, (first, second))
        known = self.pairs.get(pair)
        if known is not None:
            x, y = _mean(known.first, x), _mean(known.second, y)
        self.news |= known is None
        self._put(self.pairs, pair, PairKept(x, y, 1 if known is None else known.times + 1, date_s), MOST_PAIRS)

    def kept(self, gpu_type: str, a: ProfileKey, b: ProfileKey) -> tuple[float, float] | None:
        """What two kinds keep beside each other, by the way of sharing that was measured last; None if none was."""
        latest = self._by_kinds()
        flipped = _order(a) > _order(b)
        found = latest.get((gpu_type, b, a) if flipped else (gpu_type, a, b))
        if found is None:
            return None
        return (found.second, found.first) if flipped else (found.first, found.second)

    def of_model(self, model: str) -> Sequence[tuple[str, ProfileKey, float]]:
        """The GPU types, kinds and rates that were measured of a model, the latest one last."""
        if self._by_model is None:
            self._by_model = {}
            for (gpu_type, key), speed in self.speeds.items():
                self._by_model.setdefault(key.model, []).append((gpu_type, key, speed.rate))
        return self._by_model.get(model, ())

    def is_paired(self, key: ProfileKey) -> bool:
        """Whether a kind was measured beside any other."""
        self._by_kinds()
        return key in self._paired

    def sharings(self) -> dict[str, int]:
        """The ways of sharing, each with the number of its pairs."""
        counts: dict[str, int] = {}
        for pair in self.pairs:
            counts[pair.sharing] = counts.get(pair.sharing, 0) + 1
        return counts

    def document(self, sharing: str | None = None) -> dict[str, Any]:
        """The measurements as a throughput file. `sharing` chooses the pairs; None is the way with most of them."""
        counts = self.sharings()
        if sharing is None:
            sharing = max(counts, key=lambda way: counts[way], default=TIME_SLICING)
        elif sharing not in counts:
            known = ", ".join(sorted(counts)) or "none"
            raise InputError(f"no pair was measured by {sharing!r}; known: {known}")
        tables: dict[str, dict[str, dict[str, Any]]] = {}
        for place, speed in sorted(self.speeds.items(), key=lambda one: (one[0].gpu_type, _order(one[0].key))):
            tables.setdefault(place.gpu_type.lower(), {})[key_text(place.key)] = {ALONE: speed.rate}
        for pair, kept in sorted(self.pairs.items(), key=lambda one: (one[0].gpu_type, _order(one[0].b))):
            alone = [self.speeds.get(MeasuredKind(pair.gpu_type, key)) for key in (pair.a, pair.b)]
            if pair.sharing == sharing and alone[0] is not None and alone[1] is not None:
                rates = [kept.first * alone[0].rate, kept.second * alone[1].rate]
                tables[pair.gpu_type.lower()][key_text(pair.a)][key_text(pair.b)] = rates
        return tables

    def rows(self, shift_s: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Everything for people to read, by GPU type and model. Dates are moved by `shift_s`."""
        speeds = [
            {"gpu_type": kind.gpu_type, **kind.key._asdict(), "steps_per_s": speed.rate, "times": speed.times}
            | {"measured_s": speed.date_s + shift_s}
            for kind, speed in self.speeds.items()
        ]
        pairs = [
            {"gpu_type": pair.gpu_type, "sharing": pair.sharing, "first": pair.a._asdict(), "second": pair.b._asdict()}
            | {"kept": [kept.first, kept.second], "times": kept.times, "measured_s": kept.date_s + shift_s}
            for pair, kept in self.pairs.items()
        ]
        return {
            "speeds": sorted(speeds, key=lambda row: (row["gpu_type"], row["model"], row["gpus"])),
            "pairs": sorted(pairs, key=lambda row: (row["gpu_type"], row["first"]["model"], row["second"]["model"])),
        }

    def plain(self) -> dict[str, Any]:
        """Everything as JSON values."""
        speeds = [[place.gpu_type, list(place.key), *speed] for place, speed in self.speeds.items()]
        pairs = [[*pair[:2], list(pair.a), list(pair.b), *kept] for pair, kept in self.pairs.items()]
        return {"version": VERSION, "speeds": speeds, "pairs": pairs}

    @staticmethod
    def from_plain(plain: Any) -> MeasuredProfile:
        """Read what `plain` gave; `InputError` if it is of another version or damaged."""
        profile = MeasuredProfile()
        if plain is None:
            return profile
        version = plain.get("version") if isinstance(plain, Mapping) else None
        if version != VERSION:
            raise InputError(f"the measured profile has version {version}; this Fairway reads version {VERSION}")
        try:
            for gpu_type, key, *speed in plain["speeds"]:
                rate, times, date_s = _numbers(speed, 3)
                profile.speeds[MeasuredKind(str(gpu_type), _key(key))] = MeasuredSpeed(rate, int(times), date_s)
            for gpu_type, sharing, a, b, *kept in plain["pairs"]:
                first, second, times, date_s = _numbers(kept, 4)
                pair = MeasuredPair(str(gpu_type), str(sharing), _key(a), _key(b))
                profile.pairs[pair] = PairKept(first, second, int(times), date_s)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the measured profile is damaged ({error})") from None
        return profile

    def _by_kinds(self) -> dict[tuple[str, ProfileKey, ProfileKey], PairKept]:
        """The latest measurement of each pair of kinds on each GPU type."""
        if self._latest is None:
            by_date = sorted(self.pairs.items(), key=lambda one: one[1].date_s)
            self._latest = {(pair.gpu_type, pair.a, pair.b): kept for pair, kept in by_date}
            self._paired = {key for pair in self.pairs for key in (pair.a, pair.b)}
        return self._latest

    def _put(self, table: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
        """Put in an entry as the latest. If there are too many, the one that was put in longest ago leaves."""
        table.pop(key, None)
        self.changed, self._latest, self._by_model = True, None, None
        table[key] = value
        if len(table) > most:
            del table[next(iter(table))]


def factors_of(profile: MeasuredProfile, gpu_types: tuple[str, ...], a: ProfileKey, b: ProfileKey) -> Factors:
    """What two kinds keep on each GPU type: zeros where they were not measured; empty if they were on none."""
    kept = [profile.kept(gpu_type, a, b) for gpu_type in gpu_types]
    return tuple(one or (0.0, 0.0) for one in kept) if any(kept) else ()


def key_text(key: ProfileKey) -> str:
    """A kind of job as throughput files name it."""
    size = "" if key.batch_size is None else f" (batch size {key.batch_size})"
    return f"('{key.model}{size}', {key.gpus})"


def _mean(before: float, new: float) -> float:
    return before + WEIGHT * (new - before)


def _order(key: ProfileKey) -> tuple[str, int, int]:
    return key.model, key.batch_size or 0, key.gpus


def _ordered(
    gpu_type: str, sharing: str, a: ProfileKey, b: ProfileKey, kept: tuple[float, float]
) -> tuple[MeasuredPair, tuple[float, float]]:
    if _order(a) > _order(b):
        return MeasuredPair(gpu_type, sharing, b, a), kept[::-1]
    return MeasuredPair(gpu_type, sharing, a, b), kept


def _key(values: Any) -> ProfileKey:
    model, batch_size, gpus = values
    if not (isinstance(model, str) and isinstance(batch_size, int | None) and isinstance(gpus, int) and gpus > 0):
        raise ValueError(f"{values!r} is not a kind of job")
    return ProfileKey(model, batch_size, gpus)


def _numbers(values: list[Any], count: int) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != count or not all(math.isfinite(one) and one >= 0 for one in numbers):
        raise ValueError(f"{values!r} are not {count} numbers of at least 0")
    return numbers
