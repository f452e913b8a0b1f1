"""A state that goes on from a snapshot. With it a running cluster is rolled forward without being touched."""

from __future__ import annotations

from collections.abc import Mapping

from fairway.core import columns as c
from fairway.core.job import JobSpec
from fairway.core.snapshot import Snapshot
from fairway.core.state import State

OVERRUN = 0.5
"""A job that has done all its expected work is assumed to need this part of its time so far once more."""


def resumed(
    snapshot: Snapshot, specs: Mapping[int, JobSpec], *, min_run_s: float = 0.0, restarts_spared: float = 0.0
) -> State:
    """An independent state in which everything is as in the snapshot, job numbers and memory included.

    `specs` are the jobs by number. The snapshot must be a copy: its columns are read once, here.
    """
    frame = snapshot.frame
    state = State(
        frame.cluster,
        min_run_s=min_run_s,
        restarts_spared=restarts_spared,
        replan_interval_s=frame.replan_interval_s,
        seed=frame.seed,
        pairing=frame.pairing,
        measured=frame.measured,
        resume_s=frame.resume_s,
        round_s=frame.round_s,
    )
    state.now_s, state.round, state.memory = snapshot.now_s, snapshot.round, snapshot.memory
    # The codes of names must stay the same, because policies remember them.
    for codes, names in zip((state._users, state._queues, state._models), snapshot.names, strict=True):
        for name in names:
            codes.code(name)
    state.table.fill(snapshot.floats, snapshot.ints)
    for job in snapshot.jobs.tolist():
        state.specs[job], state.ids[job] = specs[job], snapshot.job_id(job)
        if job in frame.facts:
            state.facts[job] = frame.facts[job]
            if frame.facts[job].adaptive is not None:
                state._adaptive.add(job)
    _take_gpus(state, snapshot)
    _extend_overdue(state, snapshot)
    state.history._f, state.history._i = frame.history._f.copy(), frame.history._i.copy()
    state.history._end, state.history.count = frame.history._end, frame.history.count
    return state


def _take_gpus(state: State, snapshot: Snapshot) -> None:
    """Book what is held, by hosts before guests, and what is down."""
    held, host = snapshot.frame.held_gpus, snapshot.host
    jobs = snapshot.jobs.tolist()
    for row in sorted(snapshot.running_rows.tolist(), key=lambda row: host[row] >= 0):
        state.held_gpus[jobs[row]] = held[jobs[row]]
        state.occupancy.take(held[jobs[row]])
        # A job that was promised a start is taken to have started.
        state.table.f[c.PROTECTED_UNTIL_S, state.table.start + row] = min(
            float(snapshot.protected_until_s[row]), state._protected_until_s(state.table.start + row, jobs[row])
        )
    for node in sorted(snapshot.down_nodes):
        state.occupancy.lose(node)
        state._down.add(node)
    state._count_capacity()
    running = snapshot.running
    state._guests = int((host >= 0).sum())
    state._demand = int(snapshot.held[running].sum() + snapshot.gpus[~running].sum())
    state._guard_until_s = float(snapshot.floats[c.PROTECTED_UNTIL_S][running].max(initial=0.0))
    state._last_job = jobs[-1] if jobs else -1


def _extend_overdue(state: State, snapshot: Snapshot) -> None:
    """Give more work to jobs that have done all of theirs: it is an estimate, and they must still end some time."""
    done, f = snapshot.progress, state.table.f
    for row in (done >= snapshot.floats[c.WORK] * (1.0 - 1e-9)).nonzero()[0].tolist():
        at = state.table.start + row
        more = OVERRUN * max(float(snapshot.attained_s[row]), 1.0) * float(snapshot.best_speed[row])
        f[c.PROGRESS0, at], f[c.READY_S, at] = done[row], max(state.now_s, float(f[c.READY_S, at]))
        f[c.WORK, at] = f[c.REGIME_END, at] = done[row] + more
        state._anchor(at)
