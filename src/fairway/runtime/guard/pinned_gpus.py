"""Jobs whose state is in the memory of their GPUs: they can go on only there (their home), or from the beginning.

These are the jobs that are suspended in place, and those that would be, as long as their processes live. Policies do
not know about homes. Their decisions are corrected here: no such job is placed elsewhere, alone or as a guest. If
another job keeps computing on a home, the job waits, and its grant is free for other jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot

Homes = Mapping[int, tuple[int, ...]]
"""The GPUs that hold a job's state, by row."""


def by_row(snapshot: Snapshot, homes: Mapping[int, tuple[int, ...]]) -> Homes:
    """The homes by row, from the homes by job."""
    if not homes:
        return {}
    return {row: homes[job] for row, job in enumerate(snapshot.jobs.tolist()) if job in homes}


def other_types(snapshot: Snapshot, homes: Homes) -> dict[int, set[int]]:
    """The GPU types that rows cannot be given because their homes are of another type."""
    kinds = set(range(len(snapshot.capacity)))
    return {row: kinds - {_kind(snapshot, home)} for row, home in homes.items()} if len(kinds) > 1 else {}


def sent_home(snapshot: Snapshot, decision: Decision, homes: Homes) -> tuple[Decision, dict[int, str]]:
    """The decision with grants of rows only on their homes, and the rows that cannot have their homes now, with why."""
    granted = {row: home for row, home in homes.items() if decision.gpus[row]}
    if not granted:
        return decision, {}
    placed, away = decision.placements.items(), dict[int, str]()
    decision = decision._replace(placements={row: gpus for row, gpus in placed if granted.get(row, gpus) == gpus})
    stays = _who_stays(snapshot, decision)
    for row, home in granted.items():
        host = decision.partners.get(row, -1)
        if host >= 0 and granted.get(host) != home and not _is_on(snapshot, decision, host, home):
            away[row] = f"its memory is on {_named(home)}, and the job that it could share with is elsewhere"
        elif not snapshot.held[row]:
            root = row if host < 0 else host
            others = {other for gpu in home for other in stays.get(gpu, ())}
            taken = {other for other in others if decision.partners.get(other, other) != root}
            if taken:
                other = snapshot.job_id(int(snapshot.jobs[min(taken)]))
                away[row] = f"its memory is on {_named(home)}, where job {other} runs"
    return decision.without(away) if away else decision, away


def _who_stays(snapshot: Snapshot, decision: Decision) -> dict[int, list[int]]:
    """By GPU, the rows that go on computing there."""
    stays: dict[int, list[int]] = {}
    for row in snapshot.running_rows.tolist():
        held = snapshot.gpus_held(row)
        if decision.gpus[row] == len(held) and decision.placements.get(row, held) == held:
            for gpu in held:
                stays.setdefault(gpu, []).append(row)
    return stays


def _is_on(snapshot: Snapshot, decision: Decision, host: int, home: tuple[int, ...]) -> bool:
    return set(decision.placements.get(host) or snapshot.gpus_held(host)) == set(home)


def _kind(snapshot: Snapshot, home: tuple[int, ...]) -> int:
    return snapshot.cluster.node_type[snapshot.cluster.node_of_gpu[home[0]]]


def _named(home: tuple[int, ...]) -> str:
    return f"GPU {home[0]}" if len(home) == 1 else f"GPUs {', '.join(map(str, home))}"
