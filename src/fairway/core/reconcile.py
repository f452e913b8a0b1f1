"""The difference between what is and what shall be, as actions. Pure. Once the actions are applied, there is no
difference left."""

from __future__ import annotations

from fairway.core.action import Action, Launch, Move, Resize, SetBatch, SetQueues, Start, Suspend, Throttle
from fairway.core.decision import Decision
from fairway.core.plan import Plan
from fairway.core.snapshot import Snapshot


def reconcile(snapshot: Snapshot, decision: Decision, planned: Plan) -> list[Action]:
    """Actions that bring every target about: first what only frees GPUs, then changes, then launches."""
    queues: list[Action] = []
    if snapshot.queues is not None and decision.queues is not snapshot.queues and decision.queues != snapshot.queues:
        queues.append(SetQueues(decision.queues))
    if not planned.targets and not planned.throttles and not planned.batches:
        return queues
    suspends: list[Action] = []
    changes: list[Action] = []
    launches: list[Action] = []
    joins: list[Action] = []
    jobs, held, warm, throttles = snapshot.jobs, snapshot.held, decision.warm, decision.throttles
    batches = decision.batches
    changed: set[int] = set()
    start: Start
    for row, gpus, gpu_type, host in planned.targets:
        job, holds = int(jobs[row]), int(held[row])
        if not gpus:
            if holds:
                suspends.append(Suspend(job, warm))
            continue
        throttle, batch = throttles.get(row, 1.0), batches.get(row)
        if not holds:
            start, place = Launch(job, gpus, gpu_type, host, throttle, batch), launches
        elif len(gpus) != holds:
            start, place = Resize(job, gpus, gpu_type, host, throttle, warm, batch), changes
        elif gpus != snapshot.gpus_held(row) or host != int(snapshot.host[row]) or host in changed:
            # A guest whose host gives up its GPUs stops being a guest, even if both shall be where they were.
            start, place = Move(job, gpus, gpu_type, host, throttle, warm, batch), changes
        else:
            continue
        changed.add(job)
        # A guest joins its host, so the host must be there first.
        (place if host < 0 else joins).append(start)
    host_of = snapshot.host
    eased: list[Action] = [
        Throttle(int(jobs[row]), throttles.get(row, 1.0), int(host_of[row])) for row in planned.throttles
    ]
    eased += [SetBatch(int(jobs[row]), batches[row]) for row in planned.batches]
    return suspends + changes + launches + joins + eased + queues
