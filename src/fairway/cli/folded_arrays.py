"""Arrays in lists: all listed tasks of an array in one row, and ids of tasks in few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

MOST_RANGES = 4
"""How many stretches of task numbers are written out."""
_ORDER = ("RUNNING", "SUSPENDED", "PREEMPTED", "PENDING")


def folded(rows: Sequence[Row]) -> list[Row]:
    """The same jobs with one row per array, in the place of its first task. `tasks` says how many tasks it stands for.

    An array of which only one task is listed stays as it is.
    """
    arrays: dict[str, list[Row]] = {}
    for row in rows:
        array, _, task = row["id"].partition("_")
        arrays.setdefault(array if task else row["id"], []).append(row)
    return [tasks[0] if len(tasks) == 1 else _folded(tasks) for tasks in arrays.values()]


def _folded(tasks: Sequence[Row]) -> Row:
    waiting = [row for row in tasks if row["state"] != "RUNNING" and row["reason"].upper() not in ("", row["state"])]
    priorities = {row["priority"] for row in tasks}
    codes = {row.get("exit_code") for row in tasks}
    return {
        **tasks[0],
        "id": ids_text(row["id"] for row in tasks),
        "tasks": len(tasks),
        "state": states_text(tasks),
        "priority": priorities.pop() if len(priorities) == 1 else 0,
        "reason": waiting[0]["reason"] if waiting else "",
        "exit_code": codes.pop() if len(codes) == 1 else None,
        "gpus_held": 0,
        "started_s": None,
        "step": 0,
    }


def states_text(rows: Sequence[Row]) -> str:
    """The state that all rows share, or how many are in which: `40 running, 24 pending`."""
    found = Counter(row["state"] for row in rows)
    if len(found) == 1:
        return str(rows[0]["state"])
    known = sorted(found, key=lambda state: _ORDER.index(state) if state in _ORDER else len(_ORDER))
    return ", ".join(f"{found[state]:,} {state.lower()}" for state in known)


def ids_text(ids: Iterable[str]) -> str:
    """Ids with the tasks of an array as ranges: `3, 12_[0-5,8], 13_4`."""
    arrays: dict[str, list[int]] = {}
    for one in ids:
        array, _, task = one.partition("_")
        arrays.setdefault(array, []).extend([int(task)] if task else [])
    return ", ".join(f"{array}_{_numbers(tasks)}" if tasks else array for array, tasks in arrays.items())


def _numbers(tasks: Sequence[int]) -> str:
    """Task numbers as ranges in brackets; one by itself."""
    if len(tasks) == 1:
        return str(tasks[0])
    stretches: list[list[int]] = []
    for task in sorted(tasks):
        if stretches and task == stretches[-1][1] + 1:
            stretches[-1][1] = task
        else:
            stretches.append([task, task])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in stretches[:MOST_RANGES]]
    return f"[{','.join([*texts, *(['…'] if len(stretches) > MOST_RANGES else [])])}]"
