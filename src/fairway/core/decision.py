"""What a policy answers: GPUs for each row of the snapshot, a reason for every wait, what to remember, when to wake.

Reasons are small codes and become text only when somebody asks; a policy with more to say puts it in `texts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fairway.core.arrays import Codes, Ints
from fairway.core.holders import counted, holders_text, usable_types

if TYPE_CHECKING:
    from fairway.core.snapshot import Snapshot


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


class Reason(IntEnum):
    """Why a job waits. `RUNS` stands for jobs that hold GPUs."""

    RUNS = 0
    NO_FREE_GPUS = 1
    BEHIND = 2
    OUTRANKED = 3
    TYPE_FULL = 4
    NO_PLACEMENT = 5
    NOT_ITS_TURN = 6
    OTHER = 7


_TEXT = {
    Reason.RUNS: "it runs",
    Reason.NO_FREE_GPUS: "needs {asked}; {left} free",
    Reason.BEHIND: "waits behind job {ahead}, which came first and does not fit yet",
    Reason.OUTRANKED: "needs {asked}; {who}",
    Reason.TYPE_FULL: "no GPU type that it can use has {asked} free",
    Reason.NO_PLACEMENT: "enough GPUs are free, but not where this gang may be placed",
    Reason.NOT_ITS_TURN: "waits for its turn; {who}",
    Reason.OTHER: "the policy gave no GPUs and no more precise reason",
}


NAMES_HOLDERS = (Reason.OUTRANKED, Reason.NOT_ITS_TURN)
"""The reasons whose text says who has the GPUs."""


def reason_text(reason: Reason, gpus: int, free: int, ahead: str, who: str = "") -> str:
    """A reason as a sentence about a job that asks for `gpus`.

    `free` GPUs are free, the job `ahead` blocks the queue, and `who` says which jobs have the GPUs (`holders_text`).
    """
    left = f"{max(free, 0)} {'is' if free == 1 else 'are'}"
    return _TEXT[reason].format(asked=counted(gpus), left=left, ahead=ahead, who=who or f"{left} free")


@dataclass(slots=True)
class Decision:
    """Grants aligned to the snapshot's rows.

    `gpus[r]` is the number of GPUs that row r shall hold from now on (0: wait). `gpu_types[r]` is the type, -1 where
    placement may choose. `ahead` is the job that blocks a strict queue (-1: none). `wake_s` is the next instant at
    which the policy wants to be asked again even if nothing happens. `memory` is handed back in the next snapshot.

    Sharing: `partners` maps a guest to its host, the row whose GPUs it shares; its gang is at most as large as its
    host's. `throttles` says what part of the time a guest may compute, where not all of it.

    Placing: `placements` maps a row to concrete GPUs, for policies that place by themselves; `order` is the order in
    which the other gangs are placed (else the largest first). `warm` asks that jobs which are stopped now stay in the
    memory of their hosts, so that they resume in place within a second, and that moves go without a checkpoint.

    `blocked` GPUs count in the snapshot's capacity although nobody can be started on them now.
    """

    gpus: Ints
    reasons: Codes
    gpu_types: Ints | None = None
    ahead: int = -1
    wake_s: float = math.inf
    memory: Mapping[str, Any] = field(default_factory=_nothing)
    partners: Mapping[int, int] = field(default_factory=_nothing)
    placements: Mapping[int, tuple[int, ...]] = field(default_factory=_nothing)
    throttles: Mapping[int, float] = field(default_factory=_nothing)
    order: Sequence[int] = ()
    warm: bool = False
    texts: Mapping[int, str] = field(default_factory=_nothing)
    blocked: int = 0

    def free(self, snapshot: Snapshot) -> int:
        """How many GPUs the decision leaves to nobody although somebody could be started there."""
        return max(int(snapshot.capacity.sum() - self.gpus.sum()) - self.blocked, 0)

    def reason(self, snapshot: Snapshot, row: int) -> str:
        """The reason for the state of a row, as a sentence."""
        if row in self.texts:
            return self.texts[row]
        reason, ahead, who = Reason(int(self.reasons[row])), snapshot.job_id(self.ahead), ""
        if reason in NAMES_HOLDERS:
            who = holders_text(snapshot, self.gpus, self.gpu_types, int(usable_types(snapshot)[row]))
        return reason_text(reason, int(snapshot.gpus[row]), self.free(snapshot), ahead, who)

    def widened(self, rows: Ints, total: int) -> Decision:
        """A decision about some rows of a snapshot as one about all `total` of them: the others get nothing."""
        gpus = np.zeros(total, dtype=np.int64)
        reasons = np.full(total, int(Reason.OTHER), dtype=np.int8)
        gpus[rows], reasons[rows] = self.gpus, self.reasons
        kinds = None
        if self.gpu_types is not None:
            kinds = np.full(total, -1, dtype=np.int64)
            kinds[rows] = self.gpu_types
        at = rows.tolist()
        return Decision(
            gpus,
            reasons,
            kinds,
            self.ahead,
            self.wake_s,
            self.memory,
            {at[guest]: at[host] for guest, host in self.partners.items()},
            {at[row]: gpus for row, gpus in self.placements.items()},
            {at[row]: part for row, part in self.throttles.items()},
            [at[row] for row in self.order],
            self.warm,
            _Renumbered(self.texts, rows),
        )


class _Renumbered(Mapping[int, str]):
    """Texts about some rows, by the numbers that these have elsewhere; put into words only when somebody asks."""

    def __init__(self, texts: Mapping[int, str], rows: Ints) -> None:
        self._texts = texts
        self._rows = rows

    def __getitem__(self, row: int) -> str:
        at = int(np.searchsorted(self._rows, row))
        if at == len(self._rows) or self._rows[at] != row:
            raise KeyError(row)
        return self._texts[at]

    def __iter__(self) -> Iterator[int]:
        return (int(self._rows[at]) for at in self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def nothing_granted(rows: int, reason: Reason = Reason.OTHER) -> Decision:
    """A decision in which everybody waits for the same reason."""
    return Decision(np.zeros(rows, dtype=np.int64), np.full(rows, int(reason), dtype=np.int8))
