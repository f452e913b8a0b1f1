"""The difference between what is and what shall be, as actions. Pure: applying it twice gives nothing the second
time."""

from __future__ import annotations

from fairway.core.action import Action, Launch, Move, Resize, Start, Suspend
from fairway.core.plan import Target
from fairway.core.snapshot import Snapshot


def reconcile(snapshot: Snapshot, targets: list[Target]) -> list[Action]:
    """Actions that bring every target about: first what only frees GPUs, then changes, then launches."""
    suspends: list[Action] = []
    changes: list[Action] = []
    launches: list[Action] = []
    joins: list[Action] = []
    jobs, held = snapshot.jobs, snapshot.held
    start: Start
    for row, gpus, gpu_type, partner in targets:
        job, holds = int(jobs[row]), int(held[row])
        if not gpus:
            if holds:
                suspends.append(Suspend(job))
            continue
        if not holds:
            start, place = Launch(job, gpus, gpu_type, partner), launches
        elif len(gpus) != holds:
            start, place = Resize(job, gpus, gpu_type, partner), changes
        elif gpus != snapshot.gpus_held(row) or partner != int(snapshot.partner[row]):
            start, place = Move(job, gpus, gpu_type, partner), changes
        else:
            continue
        # A guest joins its host, so the host must be there first.
        (place if partner < 0 else joins).append(start)
    return suspends + changes + launches + joins
