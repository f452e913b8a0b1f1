"""The laws that every decision must keep. The loop checks each one before it acts; a breach names the job.

No more GPUs than there are; gangs whole, between their minimum and maximum; a type that the job can use; jobs that were
started a moment ago left alone; a reason for every wait; a wake-up in the future.
"""

from __future__ import annotations

from fairway.core.arrays import Bools
from fairway.core.decision import Decision
from fairway.core.errors import PolicyError
from fairway.core.snapshot import Snapshot


def check(snapshot: Snapshot, decision: Decision) -> None:
    """Raise `PolicyError` with the first law that the decision breaks."""
    rows, gpus = len(snapshot), decision.gpus
    if gpus.shape != (rows,) or decision.reasons.shape != (rows,):
        raise PolicyError(f"a decision over {rows} jobs has {gpus.shape} grants and {decision.reasons.shape} reasons")
    if not decision.wake_s > snapshot.now_s:
        raise PolicyError(f"wake_s={decision.wake_s} is not after now ({snapshot.now_s})")
    if not rows:
        return
    granted = gpus > 0
    _refuse(snapshot, ((gpus < snapshot.gpus_min) & granted) | (gpus < 0), "is granted fewer GPUs than its gang needs")
    _refuse(snapshot, gpus > snapshot.gpus_max, "is granted more GPUs than it can use")
    waits_silently = granted == (decision.reasons != 0)
    _refuse(snapshot, waits_silently, "waits without a reason, or runs with a reason to wait")
    _check_protection(snapshot, decision)
    _check_capacity(snapshot, decision, granted)


def _refuse(snapshot: Snapshot, broken: Bools, law: str) -> None:
    if broken.any():
        row = int(broken.argmax())
        raise PolicyError(f"job {snapshot.job_id(int(snapshot.jobs[row]))!r} {law}")


def _check_protection(snapshot: Snapshot, decision: Decision) -> None:
    protected = snapshot.protected
    if protected.any():
        law = "was started a moment ago and may not be stopped or resized yet"
        _refuse(snapshot, protected & (decision.gpus != snapshot.held), law)


def _check_capacity(snapshot: Snapshot, decision: Decision, granted: Bools) -> None:
    gpus = decision.gpus
    if decision.partners:
        gpus = gpus.copy()
        for guest, host in decision.partners.items():
            if guest == host or host in decision.partners or gpus[guest] != decision.gpus[host] or not granted[host]:
                law = f"cannot share the GPUs of job {snapshot.job_id(int(snapshot.jobs[host]))!r}"
                raise PolicyError(f"job {snapshot.job_id(int(snapshot.jobs[guest]))!r} {law}")
            gpus[guest] = 0
        if len(set(decision.partners.values())) != len(decision.partners):
            raise PolicyError("more than two jobs share the same GPUs")
    total, capacity = int(gpus.sum()), snapshot.capacity
    if total > int(capacity.sum()):
        raise PolicyError(f"{total} GPUs are granted; the cluster has {int(capacity.sum())}")
    if decision.gpu_types is None or len(capacity) == 1:
        return
    for kind, available in enumerate(capacity.tolist()):
        here = (decision.gpu_types == kind) & granted
        if int(gpus[here].sum()) > available:
            name = snapshot.cluster.types[kind].name
            raise PolicyError(f"{int(gpus[here].sum())} GPUs of type {name} are granted; there are {available}")
        _refuse(snapshot, here & (snapshot.speeds[kind] == 0), "is granted a GPU type on which it cannot run")
