"""The laws that every decision must keep. The loop checks each one before it acts; a breach names the job.

No more GPUs than there are; gangs whole, between their minimum and maximum; a type that the job can use; no stop or
resize of a job that has just started; no more than one GPU for jobs that ask for shares of it; a batch within the
limits of the job; a reason for every wait; a wake-up in the future.
"""

from __future__ import annotations

import numpy as np

from fairway.core import kernels
from fairway.core.arrays import Ints
from fairway.core.decision import Decision, Reason
from fairway.core.errors import PolicyError
from fairway.core.queue_laws import problem_in
from fairway.core.sharing import WHOLE, thousandths
from fairway.core.snapshot import Snapshot

_LAWS = {
    kernels.FEWER: "is granted fewer GPUs than its gang needs",
    kernels.MORE: "is granted more GPUs than it can use",
    kernels.SILENT: "waits without a reason",
    kernels.NEEDLESS: "runs with a reason to wait",
    kernels.UNKNOWN: "waits for a reason that does not exist",
    kernels.STOPPED: "was started a moment ago and may not be stopped or resized yet",
}


def check(snapshot: Snapshot, decision: Decision) -> None:
    """Raise `PolicyError` with the first law that the decision breaks."""
    rows, gpus, reasons = len(snapshot), decision.gpus, decision.reasons
    if gpus.shape != (rows,) or reasons.shape != (rows,):
        raise PolicyError(f"a decision over {rows} jobs has {gpus.shape} grants and {reasons.shape} reasons")
    if gpus.dtype.kind != "i" or reasons.dtype.kind != "i":
        raise PolicyError(f"grants and reasons must be whole numbers, not {gpus.dtype} and {reasons.dtype}")
    if not decision.wake_s > snapshot.now_s:
        raise PolicyError(f"wake_s={decision.wake_s} is not after now ({snapshot.now_s})")
    if not rows:
        return
    law, row, total = kernels.first_breach(gpus, reasons, snapshot.floats, snapshot.ints, snapshot.now_s)
    if law:
        raise PolicyError(f"job {snapshot.job_id(int(snapshot.jobs[row]))!r} {_LAWS[law]}")
    if decision.partners:
        gpus = _without_guests(snapshot, decision)
        total = int(gpus.sum())
        _check_shares(snapshot, decision)
    if decision.throttles:
        _check_throttles(snapshot, decision)
    available = sum(snapshot.capacity.tolist())
    if total > available:
        raise PolicyError(f"{total} GPUs are granted; the cluster has {available}")
    if decision.gpu_types is not None:
        _check_types(snapshot, decision, gpus)
    if decision.placements:
        _check_placements(snapshot, decision)
    if decision.batches:
        _check_batches(snapshot, decision)
    if decision.queues or snapshot.queues:
        _check_queues(snapshot, decision)


def _refuse(snapshot: Snapshot, rows: Ints, law: str) -> None:
    if len(rows):
        raise PolicyError(f"job {snapshot.job_id(int(snapshot.jobs[rows[0]]))!r} {law}")


def _check_types(snapshot: Snapshot, decision: Decision, gpus: Ints) -> None:
    """Each type has as many GPUs as are granted of it, and the jobs can run on theirs."""
    kinds, capacity = decision.gpu_types, snapshot.capacity
    if kinds is None or kinds.shape != gpus.shape or kinds.dtype.kind != "i":
        raise PolicyError("gpu_types must be one whole number for each job")
    granted = decision.gpus.nonzero()[0]
    types = kinds[granted]
    _refuse(snapshot, granted[(types < -1) | (types >= len(capacity))], "is granted a GPU type that does not exist")
    for kind, available in enumerate(capacity.tolist()):
        here = granted[types == kind]
        if int(gpus[here].sum()) > available:
            name = snapshot.cluster.types[kind].name
            raise PolicyError(f"{int(gpus[here].sum())} GPUs of type {name} are granted; there are {available}")
        _refuse(snapshot, here[snapshot.speeds[kind, here] == 0], "is granted a GPU type on which it cannot run")
    if snapshot.guarded:
        rows = snapshot.protected_rows
        moved = (kinds[rows] >= 0) & (kinds[rows] != snapshot.gpu_type[rows])
        _refuse(snapshot, rows[moved], "was started a moment ago and may not be moved yet")


def _check_placements(snapshot: Snapshot, decision: Decision) -> None:
    """GPUs that a policy names itself exist, are of one type, and are as many as it grants."""
    cluster = snapshot.cluster
    protected = set(snapshot.protected_rows.tolist())
    for row, gpus in decision.placements.items():
        if not 0 <= row < len(snapshot):
            raise PolicyError(f"there is no row {row} to place")
        exist = all(0 <= gpu < cluster.gpu_count for gpu in gpus)
        kinds = {cluster.node_type[cluster.node_of_gpu[gpu]] for gpu in gpus} if exist else set()
        if not exist or len(kinds) > 1 or len(set(gpus)) != len(gpus) or len(gpus) != decision.gpus[row]:
            _refuse(snapshot, np.array([row]), f"cannot be placed on GPUs {gpus}")
        if row in protected and gpus != snapshot.gpus_held(row):
            _refuse(snapshot, np.array([row]), "was started a moment ago and may not be moved yet")


def _check_throttles(snapshot: Snapshot, decision: Decision) -> None:
    """Only jobs that share GPUs are throttled."""
    sharing = {*decision.partners, *decision.partners.values()}
    for row, throttle in decision.throttles.items():
        if row not in sharing and throttle < 1:
            raise PolicyError(f"row {row} is throttled, but shares no GPU")
        if not 0 < throttle <= 1:
            _refuse(snapshot, np.array([row]), "is throttled to a part of the time that is not in (0, 1]")


def _check_shares(snapshot: Snapshot, decision: Decision) -> None:
    """Jobs that ask for shares of a GPU and sit on the same one do not ask for more than the whole.

    Jobs that ask for whole GPUs do not count: a policy that puts one beside others does so on purpose.
    """
    asked = thousandths(snapshot.share)
    if not (asked < WHOLE).any():
        return
    taken: dict[int, int] = {}
    for guest, host in decision.partners.items():
        if asked[guest] < WHOLE:
            taken[host] = taken.get(host, int(asked[host]) % WHOLE) + int(asked[guest])
    over = [host for host, total in taken.items() if total > WHOLE]
    _refuse(snapshot, np.array(over, dtype=np.int64), "and its guests ask for more than one GPU together")


def _check_batches(snapshot: Snapshot, decision: Decision) -> None:
    """Only jobs that get GPUs and may be adapted are given a batch, and it is within their limits."""
    for row, split in decision.batches.items():
        if not 0 <= row < len(snapshot):
            raise PolicyError(f"there is no row {row} to give a batch to")
        adaptive, gpus = snapshot.facts(row).adaptive, int(decision.gpus[row])
        if not gpus:
            problem: str | None = "it gets no GPUs"
        elif adaptive is None:
            problem = "it has not said that it may be adapted"
        else:
            problem = adaptive.limits_on(_type_name(snapshot, decision, row)).problem(split, gpus)
        if problem is not None:
            _refuse(snapshot, np.array([row]), f"cannot train with {split.local} samples per GPU: {problem}")


def _check_queues(snapshot: Snapshot, decision: Decision) -> None:
    """Queues are complete and come to an end; gangs that run beside them are placed on other GPUs."""
    if snapshot.queues is None:
        raise PolicyError("the decision has queues of tasks, but here jobs run as whole gangs only")
    granted = decision.gpus.nonzero()[0].tolist()
    queued = {gpu for gpu, tasks in decision.queues.items() if tasks} if granted else set()
    for row in granted if queued else ():
        if row not in decision.placements or queued.intersection(decision.placements[row]):
            _refuse(snapshot, np.array([row]), "is granted GPUs that run tasks of others")
    if decision.queues is snapshot.queues:
        return
    problem = problem_in(decision.queues, snapshot)
    if problem is not None:
        raise PolicyError(problem)
    jobs = sorted({task.job for tasks in decision.queues.values() for task in tasks})
    rows = snapshot.rows_of(jobs)
    _refuse(snapshot, rows[decision.reasons[rows] != int(Reason.QUEUED)], "has tasks in queues, but another reason")


def _type_name(snapshot: Snapshot, decision: Decision, row: int) -> str:
    """The GPU type that a row is granted; empty where that is left open."""
    types = snapshot.cluster.types
    kind = int(decision.gpu_types[row]) if decision.gpu_types is not None else 0 if len(types) == 1 else -1
    return types[kind].name if kind >= 0 else ""


def _moves(snapshot: Snapshot, decision: Decision, row: int) -> bool:
    """Whether a row will be on other GPUs than now."""
    kind = -1 if decision.gpu_types is None else int(decision.gpu_types[row])
    elsewhere = decision.placements.get(row, snapshot.gpus_held(row)) != snapshot.gpus_held(row)
    return bool(decision.gpus[row] != snapshot.held[row]) or elsewhere or kind not in (-1, snapshot.gpu_type[row])


def _without_guests(snapshot: Snapshot, decision: Decision) -> Ints:
    """The grants without those of guests, which use their hosts' GPUs. Refuses impossible pairs."""
    gpus = decision.gpus.copy()
    protected = set(snapshot.protected_rows.tolist()) if snapshot.guarded else set()
    for guest, host in decision.partners.items():
        if not (0 <= guest < len(gpus) and 0 <= host < len(gpus)):
            raise PolicyError(f"there is no row {guest} or no row {host} to share GPUs")
        if guest in decision.placements:
            _refuse(snapshot, np.array([guest]), "is placed by itself although it shares the GPUs of another")
        small = 0 < decision.gpus[guest] <= decision.gpus[host]
        if guest == host or host in decision.partners or not small:
            names = [snapshot.job_id(int(snapshot.jobs[row])) for row in (guest, host)]
            raise PolicyError(f"job {names[0]!r} cannot share the GPUs of job {names[1]!r}")
        if guest in protected and (_moves(snapshot, decision, host) or not snapshot.share_gpus(guest, host)):
            _refuse(snapshot, np.array([guest]), "was started a moment ago and may not be moved yet")
        gpus[guest] = 0
    return gpus
