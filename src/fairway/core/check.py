"""The laws that every decision must keep. The loop checks each one before it acts; a breach names the job.

No more GPUs than there are; gangs whole, between their minimum and maximum; a type that the job can use; jobs that were
started a moment ago left alone; a reason for every wait; a wake-up in the future.
"""

from __future__ import annotations

import numpy as np

from fairway.core.arrays import Ints
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
    granted = gpus.nonzero()[0]
    given = gpus[granted]
    _refuse(snapshot, granted[given < snapshot.gpus_min[granted]], "is granted fewer GPUs than its gang needs")
    _refuse(snapshot, granted[given > snapshot.gpus_max[granted]], "is granted more GPUs than it can use")
    _refuse(snapshot, granted[decision.reasons[granted] != 0], "runs with a reason to wait")
    if np.count_nonzero(decision.reasons) != rows - len(granted):
        silent = (decision.reasons == 0) & (gpus == 0)
        _refuse(snapshot, silent.nonzero()[0], "waits without a reason")
    if snapshot.guarded:
        held = snapshot.protected_rows
        law = "was started a moment ago and may not be stopped or resized yet"
        _refuse(snapshot, held[gpus[held] != snapshot.held[held]], law)
    _check_capacity(snapshot, decision, granted)


def _refuse(snapshot: Snapshot, rows: Ints, law: str) -> None:
    if len(rows):
        raise PolicyError(f"job {snapshot.job_id(int(snapshot.jobs[rows[0]]))!r} {law}")


def _check_capacity(snapshot: Snapshot, decision: Decision, granted: Ints) -> None:
    gpus = decision.gpus if not decision.partners else _without_guests(snapshot, decision)
    total, capacity = int(np.add.reduce(gpus)), snapshot.capacity
    available = int(np.add.reduce(capacity))
    if total > available:
        raise PolicyError(f"{total} GPUs are granted; the cluster has {available}")
    if decision.gpu_types is None or len(capacity) == 1:
        return
    types = decision.gpu_types[granted]
    for kind, available in enumerate(capacity.tolist()):
        here = granted[types == kind]
        if int(gpus[here].sum()) > available:
            name = snapshot.cluster.types[kind].name
            raise PolicyError(f"{int(gpus[here].sum())} GPUs of type {name} are granted; there are {available}")
        _refuse(snapshot, here[snapshot.speeds[kind, here] == 0], "is granted a GPU type on which it cannot run")


def _without_guests(snapshot: Snapshot, decision: Decision) -> Ints:
    """The grants with those of guests, who sit on their hosts' GPUs, taken out; refuses impossible pairs."""
    gpus = decision.gpus.copy()
    if len(set(decision.partners.values())) != len(decision.partners):
        raise PolicyError("more than two jobs share the same GPUs")
    for guest, host in decision.partners.items():
        same = decision.gpus[guest] == decision.gpus[host] > 0
        if guest == host or host in decision.partners or not same:
            names = [snapshot.job_id(int(snapshot.jobs[row])) for row in (guest, host)]
            raise PolicyError(f"job {names[0]!r} cannot share the GPUs of job {names[1]!r}")
        gpus[guest] = 0
    return gpus
