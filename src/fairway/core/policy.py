"""What a policy is: a named, frozen bag of knobs with one pure function, `decide`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot


@runtime_checkable
class Policy(Protocol):
    """A scheduler. `decide` must not look at anything but the snapshot: no clock, no file, no global random numbers.

    `knows` says which oracles it is allowed ("duration": true run times). `round_s` is the round length that suits it
    where the user gives none: 0 means "whenever something happens".
    """

    @property
    def name(self) -> str: ...

    @property
    def knows(self) -> frozenset[str]: ...

    @property
    def round_s(self) -> float: ...

    def decide(self, snapshot: Snapshot) -> Decision: ...


@dataclass(frozen=True)
class Layer:
    """What all policies around another one share: they go by its name, know what it knows, and keep its rounds."""

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
    def round_s(self) -> float:
        """The inner policy's rounds."""
        return self.inner.round_s
