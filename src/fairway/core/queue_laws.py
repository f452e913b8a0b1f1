"""The laws that queues of tasks must keep; `check` asks for them."""

from __future__ import annotations

from fairway.core import columns as c
from fairway.core.queues import Queues
from fairway.core.snapshot import Snapshot


def problem_in(queues: Queues, snapshot: Snapshot) -> str | None:
    """What is wrong with queues: a GPU or a job that is not there, an incomplete round, or an order without end."""
    cluster, rows = snapshot.cluster, {int(job): row for row, job in enumerate(snapshot.jobs)}
    wanted: dict[int, dict[float, int]] = {}
    for gpu, tasks in queues.items():
        if not 0 <= gpu < cluster.gpu_count:
            return f"there is no GPU {gpu} to run tasks on"
        node = cluster.node_of_gpu[gpu]
        if tasks and (node in snapshot.down_nodes or gpu in snapshot.withheld_gpus):
            return f"GPU {gpu} has a queue, but cannot be used now"
        for job, until in tasks:
            if job not in rows:
                return f"GPU {gpu} has a task of job number {job}, which is not active"
            if not snapshot.speeds[cluster.node_type[node], rows[job]] > 0:
                return f"GPU {gpu} has a task of job {snapshot.job_id(job)!r}, which cannot run there"
            counts = wanted.setdefault(job, {})
            counts[until] = counts.get(until, 0) + 1
    for job, counts in wanted.items():
        problem = _problem_in_rounds(snapshot, rows[job], counts)
        if problem is not None:
            return f"job {snapshot.job_id(job)!r} {problem}"
    return None if _ends(queues, wanted) else "the queues wait for each other"


def _problem_in_rounds(snapshot: Snapshot, row: int, counts: dict[float, int]) -> str | None:
    """What is wrong with the rounds of a job, whose tasks are counted by the end of their round."""
    gang, opened = int(snapshot.gpus[row]), snapshot.facts(row).round
    if opened is None and snapshot.held[row]:
        return "holds its GPUs as a gang, but has tasks in queues"
    done = float(snapshot.progress[row]) if opened is None else opened.until
    for until in sorted(counts):
        begun = opened is not None and until == opened.until
        missing = gang - opened.begun if opened is not None and begun else gang
        if counts[until] != missing:
            return f"has {counts[until]} tasks of a round in queues, not {missing}"
        if not begun and not done < until and snapshot.floats[c.WORK, row] > 0:
            return "has a task of a round that is over"
    if opened is not None and opened.begun < gang and opened.until not in counts:
        return "has begun a round, but not all of its tasks are in queues"
    return None


def _ends(queues: Queues, wanted: dict[int, dict[float, int]]) -> bool:
    """Whether all tasks can run in this order: no task waits, directly or through others, for one behind it."""
    left = {job: sorted(counts.items(), reverse=True) for job, counts in wanted.items()}
    at = dict.fromkeys(queues, 0)
    waiting: dict[int, list[int]] = {}
    ready, open_tasks = list(queues), {job: rounds[-1][1] for job, rounds in left.items()}
    ran = 0
    while ready:
        gpu = ready.pop()
        tasks = queues[gpu]
        while at[gpu] < len(tasks):
            job, until = tasks[at[gpu]]
            if left[job][-1][0] != until:
                waiting.setdefault(job, []).append(gpu)
                break
            at[gpu] += 1
            ran += 1
            open_tasks[job] -= 1
            if not open_tasks[job]:
                left[job].pop()
                open_tasks[job] = left[job][-1][1] if left[job] else 0
                ready += waiting.pop(job, ())
    return ran == sum(len(tasks) for tasks in queues.values())
