"""Jobs whose state is in the memory of their GPUs: they can go on only where they are, or from the beginning.

That is so for jobs that are suspended in place, and for those that would be, as long as their processes live. Policies
know nothing of it. What they decide is brought in line here: no such job is put elsewhere, or beside others elsewhere,
and one whose place is taken by somebody who stays gives way to those who can use what is free.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairway.core.decision import Decision, Reason
from fairway.core.snapshot import Snapshot

Homes = Mapping[int, tuple[int, ...]]
"""The GPUs that hold a job's state, by row."""


def by_row(snapshot: Snapshot, homes: Mapping[int, tuple[int, ...]]) -> Homes:
    """Homes of jobs as those of rows."""
    if not homes:
        return {}
    return {row: homes[job] for row, job in enumerate(snapshot.jobs.tolist()) if job in homes}


def other_types(snapshot: Snapshot, homes: Homes) -> dict[int, set[int]]:
    """The GPU types that rows cannot be given because their homes are of another one."""
    kinds = set(range(len(snapshot.capacity)))
    return {row: kinds - {_kind(snapshot, home)} for row, home in homes.items()} if len(kinds) > 1 else {}


def sent_home(snapshot: Snapshot, decision: Decision, homes: Homes) -> dict[int, str]:
    """Let rows with a home have nothing but that; returns those that cannot have it now, each with the reason."""
    granted = {row: home for row, home in homes.items() if decision.gpus[row]}
    if not granted:
        return {}
    placements, away = dict(decision.placements), dict[int, str]()
    for row, home in granted.items():
        if placements.get(row, home) != home:
            del placements[row]
    decision.placements = placements
    stays = _who_stays(snapshot, decision)
    for row, home in granted.items():
        host = decision.partners.get(row, -1)
        if host >= 0 and not _is_on(snapshot, decision, host, home):
            away[row] = f"its memory is on {_named(home)}, and the job that it could share with is elsewhere"
        elif not snapshot.held[row]:
            taken = {stays[gpu] for gpu in home if gpu in stays} - {row, host}
            if taken:
                other = snapshot.job_id(int(snapshot.jobs[min(taken)]))
                away[row] = f"its memory is on {_named(home)}, where job {other} runs"
    if away:
        _refuse(decision, away)
    return away


def _who_stays(snapshot: Snapshot, decision: Decision) -> dict[int, int]:
    """The row that goes on computing on each GPU."""
    stays: dict[int, int] = {}
    for row in snapshot.running_rows.tolist():
        held = snapshot.gpus_held(row)
        if decision.gpus[row] == len(held) and decision.placements.get(row, held) == held:
            stays.update(dict.fromkeys(held, row))
    return stays


def _is_on(snapshot: Snapshot, decision: Decision, host: int, home: tuple[int, ...]) -> bool:
    return set(decision.placements.get(host) or snapshot.gpus_held(host)) == set(home)


def _refuse(decision: Decision, away: Mapping[int, str]) -> None:
    for row in away:
        decision.gpus[row], decision.reasons[row] = 0, int(Reason.OTHER)
    # Guests of those that get nothing get nothing either.
    lost = {guest for guest, host in decision.partners.items() if host in away}
    for row in lost:
        decision.gpus[row], decision.reasons[row] = 0, int(Reason.OTHER)
    gone = lost | away.keys()
    decision.partners = {guest: host for guest, host in decision.partners.items() if guest not in gone}
    decision.placements = {row: gpus for row, gpus in decision.placements.items() if row not in gone}
    decision.throttles = {row: part for row, part in decision.throttles.items() if row not in gone}


def _kind(snapshot: Snapshot, home: tuple[int, ...]) -> int:
    return snapshot.cluster.node_type[snapshot.cluster.node_of_gpu[home[0]]]


def _named(home: tuple[int, ...]) -> str:
    return f"GPU {home[0]}" if len(home) == 1 else f"GPUs {', '.join(map(str, home))}"
