"""What would have been: the jobs of the last days replayed under other policies, beside what really happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairway.api.other_cluster import other_cluster
from fairway.api.schema import HistoryReplay
from fairway.policies import make_policy
from fairway.report.table import comparison_rows
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.journal.history import MOST_JOBS, PastScene, read_history
from fairway.simulator.replay import Replays, replayed, with_present
from fairway.traces.history import JobHistory

MOST_REPLAYED = 5_000
"""The most jobs in a replay here. The command line, which is another process, replays more."""


def past_days(scheduler: Scheduler, since_s: float, most: int = MOST_JOBS) -> JobHistory:
    """The jobs of a scheduler since a date by the time of day."""
    clock, loop = scheduler.clock, scheduler.loop
    own_s = scheduler.guard.round_s
    scene = PastScene(
        scheduler.cluster,
        scheduler.policy_text,
        clock.date_s(clock.now_s()),
        clock.shift_s,
        scheduler.state.min_run_s,
        None if loop.round_s == own_s else loop.round_s,
        loop.placer.name,
    )
    return read_history(scheduler.journal.path, since_s - clock.shift_s, scene, most)


def replay_past(scheduler: Scheduler, question: HistoryReplay) -> dict[str, Any]:
    """What other policies would have made of the jobs since a date, beside what really happened."""
    for policy in question.policies:
        make_policy(policy)
    clock = scheduler.clock
    since_s = question.since_s
    if since_s is None:
        since_s = clock.today_s(clock.now_s()) - question.days * 86400.0
    past = past_days(scheduler, since_s, MOST_REPLAYED)
    cluster = past.cluster
    if question.cluster_gpus is not None:
        cluster = other_cluster(cluster, question.cluster_gpus).without_gone()
    found = replayed(past, with_present(past, question.policies), cluster)
    return about(past) | told(found)


def about(past: JobHistory) -> dict[str, Any]:
    """What a history is about, without its jobs."""
    damaged = len(past.damaged)
    return {
        "from_s": past.from_s,
        "to_s": past.to_s,
        "whole_from_s": past.whole_from_s,
        "left_out": sum(past.left_out.values()),
        "left_out_why": dict(past.left_out),
        "damaged": damaged,
        "damaged_jobs": list(past.damaged[:100]),
        "policies": list(past.policies),
        "notes": list(past.notes),
    }


def told(found: Replays) -> dict[str, Any]:
    """The figures of `compare` for each policy and for what really happened, and the sentence about the best."""
    return {
        "jobs": found.actual["finished"],
        "actual": _row(found.actual),
        "rows": [_row(document) for document in found.documents],
        "problems": found.problems,
        "verdict": found.verdict,
    }


def _row(document: Mapping[str, Any]) -> dict[str, Any]:
    (row,) = comparison_rows([document])
    figures = {name: value for name, value in row.items() if not name.endswith(("_min", "_max"))}
    return figures | {"gpus": document["gpus"], "users": document["per_user"]}
