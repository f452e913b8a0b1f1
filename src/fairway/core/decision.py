"""What a policy answers: GPUs for each row of the snapshot, a reason for every wait, what to remember, when to wake.

Reasons are small codes and become text only on request; a policy with more to say puts it in `texts`. A decision is a
value: it never changes. Methods that change something return another decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fairway.core import texts as words
from fairway.core.arrays import Codes, Ints
from fairway.core.batch import Split
from fairway.core.holders import counted, free_text, holders_text, usable_types
from fairway.core.queues import NO_QUEUES, Queues, Task
from fairway.core.snapshot import Snapshot

V = TypeVar("V")
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


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
    QUEUED = 8


# Lists cut a reason at the right, so what differs from job to job comes first.
_TEXT = {
    Reason.RUNS: "it runs",
    Reason.NO_FREE_GPUS: "needs {asked}, {left}",
    Reason.BEHIND: "waits behind job {ahead}, which came first and does not fit yet",
    Reason.OUTRANKED: "needs {asked}; {detail}",
    Reason.TYPE_FULL: "needs {asked}, {detail}",
    Reason.NO_PLACEMENT: "needs {asked}, {left}, but not where this gang may be placed",
    Reason.NOT_ITS_TURN: "{detail}; waits for its turn",
    Reason.QUEUED: "{detail}; its tasks are in the queues of GPUs",
    Reason.OTHER: "the policy gave no GPUs and no more precise reason",
}


DETAILED = (Reason.OUTRANKED, Reason.TYPE_FULL, Reason.NOT_ITS_TURN, Reason.QUEUED)
"""The reasons whose text has a detail: which jobs have the GPUs, or how many are free of each type."""


def reason_text(reason: Reason, gpus: int, free: int, ahead: str, detail: str = "") -> str:
    """A reason as a sentence about a job that asks for `gpus`.

    `free` GPUs are free, the job `ahead` blocks the queue, and `detail` is what `Decision.detail` says.
    """
    left = f"{max(free, 0):,} free"
    return _TEXT[reason].format(asked=counted(gpus), left=left, ahead=ahead, detail=detail or left)


class Decision(NamedTuple):
    """Grants aligned to the snapshot's rows.

    `gpus[r]` is the number of GPUs that row r shall hold from now on (0: wait). `gpu_types[r]` is the type, -1 where
    placement may choose. `ahead` is the job that blocks a strict queue (-1: none). `wake_s` is the next instant at
    which the policy wants to be asked again even if nothing happens. The next snapshot returns `memory`.

    Sharing: `partners` maps a guest to its host, the row whose GPUs it shares. The guest's gang is at most as large as
    the host's. `throttles` says what part of the time a guest or a host may compute, if not all of it. A host that was
    throttled and has no guests any more gets 1.

    Placing: `placements` maps a row to concrete GPUs, for policies that place jobs themselves. `order` is the order in
    which the other gangs are placed (otherwise the largest first). `warm` asks that jobs which are stopped now stay in
    the memory of their hosts, so that they resume in place within a second, and that moves need no checkpoint.

    Adapting: `batches` maps a row that gets GPUs to the split of its batch, for jobs that allow it. Another split alone
    interrupts no job. A row that is missing here keeps its batch, or starts with the one that its owner chose.

    Tasks: `queues` are the tasks that GPUs run in order, for jobs that are scheduled as tasks instead of gangs (see
    `core.queues`). Such rows are granted nothing and have the reason `QUEUED`, also while a task of theirs runs. A
    decision that returns `snapshot.queues` leaves the queues as they are.

    `texts` explains why rows wait, or what rows do that run, where a reason code is not enough. `blocked` GPUs count in
    the snapshot's capacity although no job can start on them now.
    """

    gpus: Ints
    reasons: Codes
    gpu_types: Ints | None = None
    ahead: int = -1
    wake_s: float = math.inf
    memory: Mapping[str, Any] = _NOTHING
    partners: Mapping[int, int] = _NOTHING
    placements: Mapping[int, tuple[int, ...]] = _NOTHING
    throttles: Mapping[int, float] = _NOTHING
    order: Sequence[int] = ()
    warm: bool = False
    texts: Mapping[int, str] = _NOTHING
    blocked: int = 0
    batches: Mapping[int, Split] = _NOTHING
    queues: Queues = NO_QUEUES

    def free(self, snapshot: Snapshot) -> int:
        """How many GPUs the decision leaves free and ready for a start."""
        shared = sum(int(self.gpus[guest]) for guest in self.partners)
        return max(int(snapshot.capacity.sum() - self.gpus.sum()) + shared - self.blocked, 0)

    def reason(self, snapshot: Snapshot, row: int) -> str:
        """The reason for the state of a row, as a sentence."""
        if row in self.texts:
            return self.texts[row]
        reason, ahead = Reason(int(self.reasons[row])), snapshot.job_id(self.ahead)
        detail = self.detail(snapshot, reason, int(usable_types(snapshot)[row])) if reason in DETAILED else ""
        return reason_text(reason, int(snapshot.gpus[row]), self.free(snapshot), ahead, detail)

    def detail(self, snapshot: Snapshot, reason: Reason, usable: int) -> str:
        """What the text of a reason has to say about the GPUs of some types, the bits of `usable`."""
        if reason is not Reason.TYPE_FULL:
            return holders_text(snapshot, self.gpus, self.gpu_types, usable)
        own = self.gpus.copy()
        own[list(self.partners)] = 0
        return free_text(snapshot, own, self.gpu_types, usable, self.free(snapshot))

    def waking(self, time_s: float) -> Decision:
        """The same decision; the policy is asked again at this instant at the latest."""
        # By position, because many policies ask at every decision: `_replace` takes twice as long.
        return Decision._make((*self[:_WAKE], time_s, *self[_WAKE + 1 :])) if time_s < self.wake_s else self

    def remembering(self, memory: Mapping[str, Any]) -> Decision:
        """The same decision with this memory for the next one."""
        return self._replace(memory=memory)

    def without(
        self, rows: Iterable[int], reason: Reason = Reason.OTHER, texts: Mapping[int, str] = _NOTHING
    ) -> Decision:
        """The decision with the grants of some rows withdrawn: they and their guests wait, for `reason`.

        `texts` says why in words. It may also explain other rows that wait.
        """
        gone = set(rows)
        gone.update(guest for guest, host in self.partners.items() if host in gone)
        gpus, reasons, at = self.gpus.copy(), self.reasons.copy(), sorted(gone)
        gpus[at], reasons[at] = 0, int(reason)
        return self._replace(
            gpus=gpus,
            reasons=reasons,
            partners=_less(self.partners, gone),
            placements=_less(self.placements, gone),
            throttles=_less(self.throttles, gone),
            batches=_less(self.batches, gone),
            texts=words.over(texts, self.texts),
        )

    @staticmethod
    def composed(parts: Sequence[tuple[Ints, Decision]], rows: int, reason: Reason = Reason.OTHER) -> Decision:
        """Merge decisions about parts of the rows into one about all `rows`. Each part comes with its rows.

        Rows that are in no part wait for `reason`. Gangs are placed in the order of the parts. Memory is not merged:
        each part has its own.
        """
        gpus, reasons = np.zeros(rows, dtype=np.int64), np.full(rows, int(reason), dtype=np.int8)
        typed = any(part.gpu_types is not None for _, part in parts)
        kinds = np.full(rows, -1, dtype=np.int64) if typed else None
        partners, placements = dict[int, int](), dict[int, tuple[int, ...]]()
        throttles, order, batches = dict[int, float](), list[int](), dict[int, Split]()
        queues = dict[int, tuple[Task, ...]]()
        for mine, part in parts:
            gpus[mine], reasons[mine] = part.gpus, part.reasons
            if kinds is not None and part.gpu_types is not None:
                kinds[mine] = part.gpu_types
            if part.partners or part.placements or len(part.order):
                at = mine.tolist()
                partners |= {at[guest]: at[host] for guest, host in part.partners.items()}
                placements |= {at[row]: named for row, named in part.placements.items()}
                throttles |= {at[row]: share for row, share in part.throttles.items()}
                order += [at[row] for row in part.order]
            for gpu, tasks in part.queues.items():
                queues[gpu] = queues.get(gpu, ()) + tasks
            if part.batches:
                batches |= {int(mine[row]): split for row, split in part.batches.items()}
        return Decision(
            gpus,
            reasons,
            kinds,
            ahead=next((part.ahead for _, part in parts if part.ahead >= 0), -1),
            wake_s=min((part.wake_s for _, part in parts), default=math.inf),
            partners=partners,
            placements=placements,
            throttles=throttles,
            order=order,
            warm=any(part.warm for _, part in parts),
            texts=words.joined([(mine, part.texts) for mine, part in parts]),
            batches=batches,
            queues=queues,
        )


_WAKE = Decision._fields.index("wake_s")


def _less(by_row: Mapping[int, V], gone: Collection[int]) -> Mapping[int, V]:
    return {row: value for row, value in by_row.items() if row not in gone} if by_row else by_row


def nothing_granted(rows: int, reason: Reason = Reason.OTHER) -> Decision:
    """A decision in which every job waits for the same reason."""
    return Decision(np.zeros(rows, dtype=np.int64), np.full(rows, int(reason), dtype=np.int8))
