"""What a policy is: a name, frozen knobs, and one pure function, `decide`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot


@runtime_checkable
class Policy(Protocol):
    """A scheduler. `decide` must read nothing but the snapshot: no clock, no file, no global random numbers.

    `knows` says which oracles it may read ("duration": true run times). `round_s` is the round length that suits it if
    the user gives none; 0 means "whenever something happens".

    A policy may also have `serves_in`, the order that it promises (`core.order.Order`).
    """

    @property
    def name(self) -> str: ...

    @property
    def knows(self) -> frozenset[str]: ...

    @property
    def round_s(self) -> float: ...

    def decide(self, snapshot: Snapshot) -> Decision: ...


HEEDED = ("range", "weight", "deadline")
"""What a policy may take notice of that jobs ask for: a range of GPUs, a weight, a deadline."""


def heeded_by(policy: Policy) -> frozenset[str] | None:
    """Which words of `HEEDED` a policy takes notice of (its attribute `heeds`); None if it does not say."""
    heeds: frozenset[str] | None = getattr(policy, "heeds", None)
    return heeds


@dataclass(frozen=True)
class Layer:
    """The base of policies that wrap another one: they have its name, know what it knows, and keep its rounds."""

    inner: Policy

    @property
    def name(self) -> str:
        """The inner policy's name."""
        return self.inner.name

    @property
    def knows(self) -> frozenset[str]:
        """What the inner policy knows."""
        return self.inner.knows

    @property
    def heeds(self) -> frozenset[str] | None:
        """What the inner policy takes notice of."""
        return heeded_by(self.inner)

    @property
    def round_s(self) -> float:
        """The inner policy's rounds."""
        return self.inner.round_s
