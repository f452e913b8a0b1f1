"""What a policy is: a named, frozen bag of knobs with one pure function, `decide`."""

from __future__ import annotations

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
