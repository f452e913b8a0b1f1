"""`fairway compare --history`: the jobs of the last days under other policies, beside what really happened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairway.cli.live import At
from fairway.cli.submit_options import read

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairway.cli.simulation_options import Scene, World
    from fairway.traces.history import JobHistory

MOST_USERS, MOST_POLICIES = 20, 5
"""How many users are shown, and of how many policies."""


def past_days(at: At, since: str) -> JobHistory:
    """The jobs since a date or for a time (`7d`): from the scheduler, or from its state directory if none runs."""
    from fairway.client import NotUpError
    from fairway.submission.quantities import past_s
    from fairway.traces.history import JobHistory

    now = datetime.now().astimezone()
    since_s = float(read("history", since, lambda text: past_s(text, now)))
    try:
        return JobHistory.from_plain(at.client(timeout_s=600.0).history_trace(since=since_s))
    except NotUpError:
        path = at.folder / "journal.db"
        if at.url is not None or (at.state is None and os.environ.get("FAIRWAY_URL")) or not path.exists():
            raise
    from fairway.runtime.daemon.scheduler import MIN_RUN_S
    from fairway.runtime.journal.history import read_history, scene_of

    scene = scene_of(path, MIN_RUN_S)
    return read_history(path, since_s - scene.shift_s, scene)


def scene_of_past(past: JobHistory, world: World) -> tuple[JobHistory, Scene]:
    """The world as the scheduler had it, where the user says nothing else, and the jobs that can run there."""
    from fairway.cli.faults import read_faults
    from fairway.cli.simulation_options import Scene
    from fairway.models.profile import load_profile
    from fairway.simulator.replay import fitted, terms_of
    from fairway.traces import read_cluster

    cluster = read_cluster(world.cluster) if world.cluster else past.cluster
    fitting = fitted(past, cluster, any_type=world.any_type)
    unsaid = {name: value for name, value in terms_of(past).items() if getattr(world, name) is None}
    outages = read_faults(world.faults, cluster) if world.faults is not None else ()
    return fitting, Scene(replace(world, **unsaid), fitting.workload, cluster, load_profile(world.profile), outages)


def actual_document(past: JobHistory, *, per_job: bool) -> dict[str, Any]:
    """What really happened, as the document of a run."""
    from fairway.simulator.replay import actual_result

    return actual_result(past).to_dict(per_job=per_job)


def user_table(results: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The mean completion time of each user: as it really was, which is the first result, and under the best."""
    from fairway.cli.fitted_table import Listed, TableColumn
    from fairway.cli.output import duration
    from fairway.cli.visible import line

    actual, *others = results
    best = sorted(others, key=lambda each: each["jct_s"]["mean"] or 0.0)[:MOST_POLICIES]
    users = sorted(actual["per_user"], key=lambda user: -actual["per_user"][user]["jobs"])[:MOST_USERS]

    def cells(each: Mapping[str, Any]) -> list[str]:
        return [duration(each["per_user"].get(user, {}).get("jct_mean_s")) for user in users]

    columns = [
        TableColumn("user", [line(user) or "–" for user in users], least=8),
        TableColumn("jobs", [f"{actual['per_user'][user]['jobs']:,}" for user in users], right=True),
        TableColumn(str(actual["policy"]), cells(actual)),
        *(TableColumn(str(each["policy"]), cells(each), rank=at + 1) for at, each in enumerate(best)),
    ]
    return Listed(columns)


def period(past: JobHistory) -> str:
    """Which jobs a history has, in a line."""
    from fairway.cli.output import count

    dates = [datetime.fromtimestamp(date_s).strftime("%Y-%m-%d %H:%M") for date_s in (past.from_s, past.to_s)]
    gpus = count(past.cluster.gpu_count, "GPU")
    return f"{count(len(past.jobs), 'job')} from {dates[0]} to {dates[1]} on {gpus}"
