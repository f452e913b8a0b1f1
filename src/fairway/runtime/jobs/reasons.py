"""Why jobs wait, from the last decision. Lists use this, since they cannot ask the policy about every row.

The decision is kept as it is. It becomes text when it is first read, once for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.decision import NAMES_HOLDERS, Decision, Reason, reason_text
from fairway.core.holders import holders_text, usable_types
from fairway.core.snapshot import Snapshot

GRANTED = "it is about to start"
_NOBODY = -1


class _Round(NamedTuple):
    """One decision and the snapshot it was about. The columns of a snapshot change later, so these are copies.

    `usable` are the GPU types that each row can use. `who` names the jobs that hold the GPUs of these types.
    """

    jobs: Ints
    gpus: Ints
    decision: Decision
    free: int
    ahead: str
    usable: Ints
    who: Mapping[int, str]


class Reasons:
    """The reasons of the last round. The scheduler's thread notes them; any thread may read."""

    def __init__(self) -> None:
        self._round: _Round | None = None
        self._told: tuple[_Round | None, Mapping[int, str]] = (None, {})

    def note(self, snapshot: Snapshot, decision: Decision) -> None:
        """Keep the decision of a round, with the snapshot that the policy saw."""
        free = decision.free(snapshot)
        ahead = snapshot.job_id(decision.ahead)
        usable = usable_types(snapshot)
        naming = np.logical_or.reduce([decision.reasons == int(reason) for reason in NAMES_HOLDERS])
        who = {
            types: holders_text(snapshot, decision.gpus, decision.gpu_types, types)
            for types in set(usable[naming].tolist())
        }
        self._round = _Round(snapshot.jobs.copy(), snapshot.gpus.copy(), decision, free, ahead, usable, who)

    def forget(self, job: int) -> None:
        """Drop the reason of a job: it no longer applies, and there is no new decision yet."""
        if self._round is not None:
            self._round.jobs[self._round.jobs == job] = _NOBODY
            self._round = self._round._replace()

    def all(self) -> Mapping[int, str]:
        """Texts by job number, for the jobs of the last round. Callers may keep the mapping but not change it."""
        last, (told_of, told) = self._round, self._told
        if last is not None and told_of is not last:
            told = _texts(last)
            self._told = last, told
        return told


def _texts(last: _Round) -> dict[int, str]:
    known: dict[tuple[int, int, int], str] = {}
    told: dict[int, str] = {}
    columns = (last.jobs, last.gpus, last.usable, last.decision.gpus, last.decision.reasons)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, (job, gpus, usable, granted, code) in enumerate(rows):
        if granted:
            told[job] = GRANTED
        elif row in last.decision.texts:
            told[job] = last.decision.texts[row]
        else:
            key = code, gpus, usable
            if key not in known:
                known[key] = reason_text(Reason(code), gpus, last.free, last.ahead, last.who.get(usable, ""))
            told[job] = known[key]
    return told
