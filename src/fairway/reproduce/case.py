"""A case: one published run or headline, how to run it here, and the figures that come out.

A figure is judged by a yardstick that is written beside it, before the run. What is not reached is said, with the
reason if it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from fairway.core.errors import InputError


class Verdicts(StrEnum):
    """How a figure compares with the published one."""

    MET = "met"
    BETTER = "better"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The rule by which a figure is judged. Made by `equal`, `within`, `at_most` and `at_least`.

    `slack` is a share of the published figure. `good` says on which side of it a figure is better: `lower`, `higher`
    or neither. A `bound` is a promise: what is on its good side has met it, however far.
    """

    slack: float = 0.0
    good: str = ""
    decimals: int | None = None
    bound: bool = False

    @classmethod
    def equal(cls, decimals: int) -> Yardstick:
        """The same number, rounded to some decimals."""
        return cls(decimals=decimals)

    @classmethod
    def within(cls, share: float, *, good: str = "") -> Yardstick:
        """Within a share of the published figure or range; beyond it on its `good` side, if it has one: better."""
        return cls(slack=share, good=good)

    @classmethod
    def at_most(cls) -> Yardstick:
        """A promise that is kept by every figure up to it."""
        return cls(good="lower", bound=True)

    @classmethod
    def at_least(cls) -> Yardstick:
        """A promise that is kept by every figure from it on."""
        return cls(good="higher", bound=True)

    def judge(self, ours: float, published: float | tuple[float, float]) -> Verdicts:
        """The verdict.

        >>> str(Yardstick.within(0.05, good="lower").judge(80.0, 100.0))
        'better'
        >>> str(Yardstick.within(0.05, good="lower").judge(106.0, 100.0))
        'not reached'
        """
        low, high = published if isinstance(published, tuple) else (published, published)
        if self.decimals is not None:
            # A half of the last printed digit, and a little for the sum of roundings.
            room = 0.5001 * 10.0**-self.decimals
        else:
            room = self.slack * max(abs(low), abs(high))
        if low - room <= ours <= high + room:
            return Verdicts.MET
        if (self.good == "lower" and ours < low) or (self.good == "higher" and ours > high):
            return Verdicts.MET if self.bound else Verdicts.BETTER
        return Verdicts.NOT_REACHED

    def __str__(self) -> str:
        if self.decimals is not None:
            return "equal" if self.decimals == 0 else f"equal to {self.decimals} decimal{'s' * (self.decimals > 1)}"
        if self.bound:
            return "at most" if self.good == "lower" else "at least"
        side = f", {self.good} is better" if self.good else ""
        return (f"within {100 * self.slack:g} %" if self.slack else "within the range") + side


@dataclass(frozen=True, slots=True)
class Figure:
    """One number beside the published one.

    `why` says in a sentence why it is not reached, where that is known. A `headline` is listed on the first page.
    """

    what: str
    published: float | tuple[float, float]
    ours: float
    yardstick: Yardstick
    unit: str = ""
    decimals: int = 1
    why: str = ""
    headline: bool = False

    @property
    def verdict(self) -> Verdicts:
        return self.yardstick.judge(self.ours, self.published)

    def written(self, value: float | tuple[float, float]) -> str:
        """A value with its unit."""
        if isinstance(value, tuple):
            low, high = (f"{each:,.{self.decimals}f}" for each in value)
            return f"{low} to {high}{self._unit}"
        return f"{value:,.{self.decimals}f}{self._unit}"

    @property
    def _unit(self) -> str:
        return self.unit if self.unit in ("", "×") else f" {self.unit}"


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table of what was measured, as texts in Markdown; the first `texts` columns are not numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1


@dataclass(frozen=True, slots=True)
class Findings:
    """What a case found: figures with verdicts, tables and pictures (SVG texts) by their names."""

    figures: tuple[Figure, ...] = ()
    tables: Mapping[str, ResultTable] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is not part of Fairway: its path below the data directory, and where to get it."""

    path: str
    repository: str
    source: str

    def __str__(self) -> str:
        return f"{self.source} of {self.repository} as {self.path}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the user of a run has given: the data directory, if any, and whether it should be quick."""

    data: Path | None = None
    quick: bool = False

    def has(self, file: DataFile) -> bool:
        """Whether a file is there."""
        return self.data is not None and (self.data / file.path).exists()

    def file(self, file: DataFile) -> Path:
        """Where a file is."""
        if self.data is None or not self.has(file):
            raise InputError(f"there is no {file.path} in the data directory; get {file}")
        return self.data / file.path


@dataclass(frozen=True, slots=True)
class Case:
    """One published run or headline of a system.

    `system` is a name of the table in `docs/policies/README.md`, `page` its page there. `cpu_s` and `quick_cpu_s` are
    about what the run takes; a case without `quick_cpu_s` is left out of a quick run. `gpu` says what to run instead
    where it needs a GPU; such a case has no `run`.
    """

    name: str
    system: str
    title: str
    source: str
    page: str
    run: Callable[[Setting], Findings] | None = None
    cpu_s: float = 1.0
    quick_cpu_s: float | None = None
    needs: tuple[DataFile, ...] = ()
    gpu: str = ""

    def missing(self, setting: Setting) -> tuple[DataFile, ...]:
        """The files that it needs and that are not there."""
        return tuple(file for file in self.needs if not setting.has(file))

    def cost_s(self, *, quick: bool) -> float:
        """About how many CPU seconds it takes."""
        if self.run is None:
            return 0.0
        return (self.quick_cpu_s or 0.0) if quick else self.cpu_s
