"""What the shell offers after TAB: ids of jobs that a running scheduler has, and names of policies.

Completion is never in the way: it takes a moment at most, and where nothing can be found it offers nothing.
"""

from __future__ import annotations

import re

import typer

from fairway.cli.live import At

WAIT_S = 0.5
"""How long a scheduler may take to answer."""
MOST_JOBS = 2_000
_UNSAFE = re.compile(r"[^A-Za-z0-9 ./:=@+_-]")
_UNENDED = ("PENDING", "RUNNING", "SUSPENDED", "PREEMPTED")


def active_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Jobs that have not ended, with their state and name."""
    return _jobs(ctx, incomplete, _UNENDED)


def all_jobs(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The latest jobs, with their state and name."""
    return _jobs(ctx, incomplete, ())


def _jobs(ctx: typer.Context, incomplete: str, states: tuple[str, ...]) -> list[tuple[str, str]]:
    try:
        where = At(ctx.params.get("state"), ctx.params.get("url"))
        rows = where.client(timeout_s=WAIT_S).ls(state=states, limit=MOST_JOBS)
    except Exception:
        return []
    found: dict[str, str] = {}
    for row in rows:
        name, kind = row["id"], row["state"]
        array, _, task = name.partition("_")
        if task and "_" not in incomplete:
            name, kind = array, "array"
        if name.startswith(incomplete):
            # Other users chose these words, and some shells evaluate them.
            found[name] = f"{kind} {_UNSAFE.sub('', row['name'] or row['command'])}".strip()
    return list(found.items())


def policy_names(incomplete: str) -> list[str]:
    """The policies that come with Fairway."""
    try:
        from fairway.policies import policies

        return [name for name in policies() if name.startswith(incomplete)]
    except Exception:
        return []
