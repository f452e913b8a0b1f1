"""How two jobs slow each other down on the same GPUs, as far as it is known beforehand.

Jobs of one *kind* behave alike beside others, so a policy asks about kinds and not about every pair of jobs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

Factors = tuple[tuple[float, float], ...]
"""For each GPU type: what part of their own speeds the first and the second job keep; zeros where they do not fit."""


class Pairing(Protocol):
    """Knows how jobs run in pairs: an engine with a profile, or a table taken from one."""

    def kind(self, job: int) -> Hashable:
        """What a job's speeds beside other jobs depend on now."""
        ...

    def factors(self, a: int, b: int) -> Factors:
        """What part of their speeds two jobs of equal gangs keep on each GPU type."""
        ...


class PairTable(NamedTuple):
    """A pairing on its own: the kinds of some jobs, and the factors of each pair of kinds, the smaller first."""

    kinds: Mapping[int, int]
    by_kinds: Mapping[tuple[int, int], Factors]

    @staticmethod
    def of(pairing: Pairing, jobs: Iterable[int]) -> PairTable:
        """What a pairing knows about the given jobs."""
        codes: dict[Hashable, int] = {}
        kinds: dict[int, int] = {}
        first: list[int] = []
        for job in jobs:
            code = codes.setdefault(pairing.kind(job), len(codes))
            kinds[job] = code
            if code == len(first):
                first.append(job)
        factors = {(a, b): pairing.factors(first[a], first[b]) for b in range(len(first)) for a in range(b + 1)}
        return PairTable(kinds, factors)

    def kind(self, job: int) -> Hashable:
        """The number of a job's kind. A job that the table does not know has a kind of its own."""
        return self.kinds.get(job, -1 - job)

    def factors(self, a: int, b: int) -> Factors:
        """The factors of two jobs; empty where the table does not know them."""
        x, y = self.kinds.get(a, -1), self.kinds.get(b, -1)
        if x > y:
            return tuple((second, first) for first, second in self.factors(b, a))
        return self.by_kinds.get((x, y), ())

    def plain(self) -> list[Any]:
        """The table as JSON values."""
        return [list(self.kinds.items()), [[*key, factors] for key, factors in self.by_kinds.items()]]

    @staticmethod
    def from_plain(values: list[Any]) -> PairTable:
        """Read what `plain` gave."""
        kinds, entries = values
        table = {(a, b): tuple((float(x), float(y)) for x, y in factors) for a, b, factors in entries}
        return PairTable({int(job): int(kind) for job, kind in kinds}, table)


NO_PAIRING = PairTable({}, {})


class Measurements(Protocol):
    """What an engine has measured: which speeds are more than assumptions, and what pairs of jobs keep of them."""

    def kind(self, job: int) -> Hashable:
        """What a job's speeds beside other jobs depend on now."""
        ...

    def factors(self, a: int, b: int) -> Factors:
        """What part of their speeds two jobs were measured to keep on each GPU type; empty if they were not."""
        ...

    def is_seen(self, job: int) -> bool:
        """Whether the speed of a job is known from measurements, as far as it has run at all."""
        ...


class MeasuredTable(NamedTuple):
    """Measurements on their own: the pairs, and the jobs whose speeds are assumptions."""

    pairs: PairTable = NO_PAIRING
    unseen: frozenset[int] = frozenset()

    @staticmethod
    def of(measured: Measurements, jobs: Iterable[int]) -> MeasuredTable:
        """What was measured of the given jobs."""
        listed = list(jobs)
        return MeasuredTable(
            PairTable.of(measured, listed), frozenset(job for job in listed if not measured.is_seen(job))
        )

    def kind(self, job: int) -> Hashable:
        """The number of a job's kind."""
        return self.pairs.kind(job)

    def factors(self, a: int, b: int) -> Factors:
        """The factors of two jobs; empty if they were not measured."""
        return self.pairs.factors(a, b)

    def is_seen(self, job: int) -> bool:
        """Whether the speed of a job is known from measurements."""
        return job not in self.unseen

    def plain(self) -> list[Any]:
        """The table as JSON values."""
        return [self.pairs.plain(), sorted(self.unseen)]

    @staticmethod
    def from_plain(values: list[Any]) -> MeasuredTable:
        """Read what `plain` gave."""
        pairs, unseen = values
        return MeasuredTable(PairTable.from_plain(pairs), frozenset(unseen))


ALL_SEEN = MeasuredTable()
"""Of an engine that knows the speeds of all jobs, and has measured no pairs."""
