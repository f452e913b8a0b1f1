"""The difference between what is and what shall be, as actions. Pure: applying it twice gives nothing the second
time."""

from __future__ import annotations

from fairway.core.action import Action, Launch, Move, Resize, Suspend
from fairway.core.plan import Target
from fairway.core.snapshot import Snapshot


def reconcile(snapshot: Snapshot, targets: list[Target]) -> list[Action]:
    """Actions that bring every target about: first what only frees GPUs, then changes, then launches."""
    suspends: list[Action] = []
    changes: list[Action] = []
    launches: list[Action] = []
    for row, gpus, gpu_type, partner in targets:
        job, held = int(snapshot.jobs[row]), int(snapshot.held[row])
        if not gpus:
            if held:
                suspends.append(Suspend(job))
        elif not held:
            launches.append(Launch(job, gpus, gpu_type, partner))
        elif len(gpus) != held:
            changes.append(Resize(job, gpus, gpu_type, partner))
        elif gpus != snapshot.gpus_held(row) or partner != int(snapshot.partner[row]):
            changes.append(Move(job, gpus, gpu_type, partner))
    starts = changes + launches
    # A guest joins its host, so the host must be there first.
    starts.sort(key=lambda action: not isinstance(action, Suspend) and action.partner >= 0)
    return suspends + starts
