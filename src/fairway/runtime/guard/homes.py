"""Jobs whose state is in the memory of their GPUs: they can go on only where they are, or from the beginning.

That is so for jobs that are suspended in place, and for those that would be, as long as their processes live. Policies
know nothing of it. What they decide is brought in line here: no such job is put elsewhere, or beside others elsewhere,
and one whose place is taken by somebody who stays gives way to those who can use what is free.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairway.core.decision import Decision
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


def sent_home(snapshot: Snapshot, decision: Decision, homes: Homes) -> tuple[Decision, dict[int, str]]:
    """The decision in which rows with a home have nothing but that, and those that cannot have it now with reasons."""
    granted = {row: home for row, home in homes.items() if decision.gpus[row]}
    if not granted:
        return decision, {}
    placed, away = decision.placements.items(), dict[int, str]()
    decision = decision._replace(placements={row: gpus for row, gpus in placed if granted.get(row, gpus) == gpus})
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
    return decision.without(away) if away else decision, away


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


def _kind(snapshot: Snapshot, home: tuple[int, ...]) -> int:
    return snapshot.cluster.node_type[snapshot.cluster.node_of_gpu[home[0]]]


def _named(home: tuple[int, ...]) -> str:
    return f"GPU {home[0]}" if len(home) == 1 else f"GPUs {', '.join(map(str, home))}"
