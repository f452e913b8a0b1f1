"""Answers about jobs, nodes and users, as JSON values.

They are read from records while the scheduler works on them, so each value is true of some recent instant. Lists are
made without models, because 10,000 rows have to be quick.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from fairway import __version__
from fairway.api.disk_space import DiskSpace
from fairway.api.people import Person, user_name
from fairway.policies import policies
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.guard.tenancy import tenants_told
from fairway.runtime.jobs import promises
from fairway.runtime.jobs.job_story import for_others, gpus_text
from fairway.runtime.jobs.life import RECLAIMED
from fairway.runtime.jobs.records import JobRecord, JobState, later
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.run_times import RunTimeEstimate
from fairway.runtime.jobs.waiting import GRANTED
from fairway.runtime.processes.site import GpuLoad

MOST_SHOWN = 200
"""Characters of a command in a list."""
GOES_ON = "held; it keeps running, but is not started again before `fairway release`"
MASK = "********"
"""What is shown instead of a secret."""
_SECRET = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|(?<![A-Z])(PASS|O?AUTH|DSN)|(?<=_)PWD)S?(?=_|[0-9]|$)"
)
"""Names of variables that hold secrets: WANDB_API_KEY, HF_TOKEN, but not TOKENIZERS_PARALLELISM."""
_WHO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""Who somebody is in a URL, often with a password: http://ann:secret@proxy."""
_PRIVATE = ("command", "executor", "shown", "cwd")
_TRIES = 100
T = TypeVar("T")


def steady(read: Callable[[], T]) -> T:
    """Read something that the scheduler's thread may be changing; try again if it was changed meanwhile."""
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:
            continue
    return read()


Sees = Callable[[JobRecord], bool]
"""Whether the command of a job is shown."""


def all_seen(record: JobRecord) -> bool:
    """Commands are shown."""
    return True


def row(scheduler: Scheduler, record: JobRecord, now_s: float, *, seen: bool = True) -> dict[str, Any]:
    """One job in a list; `now_s` is the scheduler's present. `seen`: its command is shown.

    Dates are shown by the time of day as it is set now.
    """
    request, progress, attempt = record.request, record.progress, record.attempt
    running, shift_s = record.state is JobState.RUNNING, scheduler.clock.shift_s
    ran_s, gpu_s, held = record.ran_s, record.gpu_s, 0
    if running and attempt is not None:
        held = len(attempt.gpus)
        ran_s = scheduler.engine.ran_s(record, now_s)
        gpu_s += max(ran_s - record.ran_s, 0.0) * held * request.gpu_share
    return {
        "id": record.id,
        "name": request.name,
        "user": request.user,
        "queue": request.queue,
        "state": record.state,
        "reason": reason_of(scheduler, record, seen=seen),
        "gpus": request.gpus,
        "gpus_min": request.gpus_min,
        "gpus_max": request.gpus_max,
        "gpu_share": request.gpu_share,
        "gpus_held": held,
        "priority": request.priority,
        "submitted_s": record.submitted_s + shift_s,
        "started_s": later(record.started_s, shift_s),
        "ended_s": later(record.ended_s, shift_s),
        "ran_s": ran_s,
        "gpu_s": gpu_s,
        "attempts": len(record.attempts),
        "preemptions": record.preemptions,
        "preempt": request.preempt,
        "exit_code": record.exit_code,
        "step": progress.step,
        "steps": progress.steps or request.steps,
        "command": command_of(request) if seen else "",
    }


def command_of(request: JobRequest) -> str:
    """The command of a job, in short."""
    return request.shown[:MOST_SHOWN] or _in_short(request.command)


def reason_of(scheduler: Scheduler, record: JobRecord, *, seen: bool = True) -> str:
    """Why a job is in its state. While it waits: why the policy may not start it, or what the last decision said.

    `seen`: it may name the command or the directory.
    """
    reason = _reason(scheduler, record)
    return reason if seen else for_others(reason)


def _reason(scheduler: Scheduler, record: JobRecord) -> str:
    if record.state is JobState.RUNNING:
        return record.reason or (GOES_ON if record.held else "")
    if record.state.ended:
        return record.reason
    if record.suspended and record.reason == RECLAIMED:
        return RECLAIMED
    outside = scheduler.guard.outside.get(record.number)
    if outside:
        return outside
    blocked = scheduler.blocked.common(len(scheduler.cluster.node_of_gpu))
    if blocked and record.number not in scheduler.state.held_gpus:
        return blocked
    decided = scheduler.reasons.all().get(record.number, "")
    if decided == GRANTED and record.number not in scheduler.state.held_gpus:
        # The job has lost the GPUs that it was given, and waits for the next decision.
        decided = ""
    # A suspended job that was resumed waits now; how it was stopped is no longer the reason.
    last = "" if record.state is JobState.SUSPENDED else record.reason
    return decided or last


def rows(scheduler: Scheduler, records: Iterable[JobRecord], sees: Sees = all_seen) -> list[dict[str, Any]]:
    """Jobs in a list."""
    now_s = scheduler.clock.now_s()
    return [row(scheduler, record, now_s, seen=sees(record)) for record in records]


def full(scheduler: Scheduler, record: JobRecord, *, own: bool, seen: bool) -> dict[str, Any]:
    """One job in full. `own`: for its owner or an operator. `seen`: others may see its command and its directory."""
    request, shift_s = record.request.plain(), scheduler.clock.shift_s
    env = request.pop("env", None)
    if env and own:
        request["env"] = {name: _masked(name, value) for name, value in env.items()}
    if not own and record.request.shown:
        # It may be a whole script.
        del request["command"]
    if not seen:
        request = {name: value for name, value in request.items() if name not in _PRIVATE}
    return {
        **row(scheduler, record, scheduler.clock.now_s(), seen=seen),
        "private": not seen,
        "held": record.held,
        "suspended": record.suspended,
        "failures": record.failures,
        "not_before_s": later(record.not_before_s, shift_s),
        "request": request,
        "progress": record.progress.shown(shift_s) | ({} if seen else {"checkpoint": None}),
        "estimate": None if record.state.ended else _shown_estimate(scheduler, record),
        "history": [
            attempt.shown(shift_s) | {"where": gpus_text(scheduler.cluster, attempt.gpus, attempt.nodes)}
            for attempt in list(record.attempts)
        ],
        "promises": promises.shown(record, shift_s),
    }


def _masked(name: str, value: str) -> str:
    """A variable as it is shown, also to its owner: pages and answers are copied, and stay on screens."""
    return MASK if _SECRET.search(name.upper()) else _WHO.sub(MASK, value)


def estimate_of(scheduler: Scheduler, record: JobRecord) -> RunTimeEstimate:
    """How long a job runs in all."""
    return steady(lambda: scheduler.observations.estimate(record, scheduler.clock.now_s()))


def _shown_estimate(scheduler: Scheduler, record: JobRecord) -> dict[str, Any]:
    """How long a job runs in all. The interval is told where those of ends are, because these follow from it."""
    return estimate_of(scheduler, record).plain(rough=not scheduler.promises.trust("finish").tells_intervals)


def line(scheduler: Scheduler, record: JobRecord, *, seen: bool) -> str:
    """One job in full, without its environment, as a line of JSON. `seen`: with its command and its directory."""
    told = full(scheduler, record, own=False, seen=seen)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n"


def nodes(daemon: Daemon) -> list[dict[str, Any]]:
    """Every machine with its GPUs and who has them."""
    scheduler = daemon.scheduler
    taken = steady(scheduler.engine.attempts.busy)
    cluster, devices, blocked = scheduler.cluster, scheduler.engine.devices, scheduler.blocked
    store, out, loads = scheduler.store, [], daemon.site.gpu_loads()
    suspended = steady(lambda: suspended_jobs(scheduler))
    for number, node in enumerate(cluster.nodes):
        first, (status, reason) = cluster.first_gpu[number], node_status(scheduler, number)
        gpus = []
        for gpu in range(first, first + node.gpus):
            jobs, why = taken.get(gpu, []), blocked.why.get(gpu, "")
            use = "held" if jobs else status if status != "up" else "foreign" if why else "idle"
            device = None if devices is None else devices[gpu]
            ids = [store[job].id for job in jobs]
            about = {"index": gpu - first, "device": device, "use": use, "jobs": ids, "reason": why}
            gpus.append({**about, "suspended": suspended.get(gpu, []), **loads.get(gpu, GpuLoad())._asdict()})
        memory = cluster.types[cluster.node_type[number]].memory_bytes
        about = {"name": node.name, "status": status, "reason": reason, "gpu_type": node.gpu_type}
        about["memory_bytes"] = int(memory)
        out.append({**about, "sharing": scheduler.sharing.words(), "gpus": gpus})
    return out


def suspended_jobs(scheduler: Scheduler) -> dict[int, list[dict[str, Any]]]:
    """The jobs that are suspended on each GPU, and where their memory is. The bytes are 0 if nobody knows."""
    found: dict[int, list[dict[str, Any]]] = {}
    for job, live in scheduler.engine.attempts.live.items():
        if live.status == "paused":
            memory = live.handle.memory
            size = memory.bytes or scheduler.engine.needs_bytes(job)
            place = "host" if memory.place == "host" else "gpu"
            for gpu in live.gpus:
                found.setdefault(gpu, []).append({"id": scheduler.store[job].id, "memory": place, "bytes": size})
    return found


def suspended_bytes(scheduler: Scheduler) -> dict[str, int]:
    """The GPU memory of suspended jobs that is on GPUs, and that is in host memory, in bytes."""
    total = {"gpu": 0, "host": 0}
    for jobs in steady(lambda: suspended_jobs(scheduler)).values():
        for one in jobs:
            total[one["memory"]] += one["bytes"]
    return total


def node_status(scheduler: Scheduler, node: int) -> tuple[str, str]:
    """Whether jobs may be started on a node ("up"), and why not."""
    change, drain = scheduler.nodes.away.get(node), scheduler.draining.nodes.get(scheduler.cluster.nodes[node].name)
    told = ([] if change is None else [scheduler.nodes.told(change)]) + ([] if drain is None else [drain.text])
    status = change.status if change is not None else "drained" if drain is not None else "up"
    return status, "; ".join(told)


def node_statuses(scheduler: Scheduler) -> dict[str, int]:
    """How many nodes are up, do not answer, are lost or drained."""
    counts = Counter(node_status(scheduler, node)[0] for node in range(len(scheduler.cluster.nodes)))
    return {status: counts.get(status, 0) for status in ("up", "unreachable", "lost", "drained")}


def gpu_uses(told: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many GPUs of these nodes are held, idle, used by foreign processes, or on nodes that are not up."""
    uses = Counter(gpu["use"] for node in told for gpu in node["gpus"])
    return {use: uses.get(use, 0) for use in ("held", "idle", "foreign", "unreachable", "lost", "drained")}


def profile(scheduler: Scheduler, sharing: str | None) -> dict[str, Any]:
    """What was measured of live jobs, and the same as a profile; `sharing` chooses the pairs of that."""
    measured, shift_s = scheduler.measured.profile, scheduler.clock.shift_s
    told = scheduler.ask(lambda now_s: ([], measured.rows(shift_s) | {"throughputs": measured.document(sharing)}))
    return dict(told)


def share(scheduler: Scheduler) -> list[dict[str, Any]]:
    """What every user holds and has used; the largest use first."""
    users: dict[str, dict[str, Any]] = {}
    now_s, total = scheduler.clock.now_s(), len(scheduler.cluster.node_of_gpu)

    def of(name: str) -> dict[str, Any]:
        none = {"user": name, "gpus_held": 0.0, "share": 0.0, "gpu_s": 0.0, "running": 0, "waiting": 0, "ended": 0}
        return users.setdefault(name, none)

    past = scheduler.store.past
    for name, gpu_s in list(past.gpu_s.items()):
        of(name).update(gpu_s=gpu_s, ended=past.ended[name])
    for record in scheduler.store.unsettled():
        one = of(record.request.user)
        one["gpu_s"] += record.gpu_s
        if record.state is JobState.RUNNING and record.attempt is not None:
            held = len(record.attempt.gpus) * record.request.gpu_share
            one["running"] += 1
            one["gpus_held"] += held
            one["gpu_s"] += max(scheduler.engine.ran_s(record, now_s) - record.ran_s, 0.0) * held
        else:
            one["ended" if record.state.ended else "waiting"] += 1
    for one in users.values():
        one["gpus_held"] = round(one["gpus_held"], 3)
        one["share"] = one["gpus_held"] / total
    return sorted(users.values(), key=lambda one: (-one["gpu_s"], one["user"]))


def policy(scheduler: Scheduler) -> dict[str, Any]:
    """The policy that decides now."""
    return {
        "policy": scheduler.policy_text,
        "name": scheduler.guard.name,
        "round_s": scheduler.loop.round_s,
        "problem": scheduler.guard.problem,
        "known": sorted(policies()),
    }


def status(daemon: Daemon, disk: DiskSpace, person: Person, began_s: float) -> dict[str, Any]:
    """The scheduler itself, and who asks. It began at the instant `began_s`."""
    scheduler, free_bytes = daemon.scheduler, disk.free_bytes()
    clock, cluster = scheduler.clock, scheduler.cluster
    uses = gpu_uses(nodes(daemon))
    return {
        "version": __version__,
        "pid": os.getpid(),
        "user": user_name(os.geteuid()),
        "folder": str(daemon.options.folder),
        "since_s": clock.today_s(began_s),
        "now_s": clock.today_s(clock.now_s()),
        "policy": scheduler.policy_text,
        "problem": scheduler.guard.problem or daemon.settings.problem,
        "policy_problem": scheduler.guard.problem,
        "configuration": str(daemon.settings.path) if daemon.settings.read else None,
        "configuration_problem": daemon.settings.problem,
        "export": daemon.settings.config.defaults.export,
        "clock": clock.remark(),
        "cluster": cluster.text or " ".join(f"{node.gpu_type}:{node.gpus}" for node in cluster.nodes),
        "gpus": len(cluster.node_of_gpu),
        "gpus_held": uses["held"],
        "tenants": tenants(scheduler),
        "jobs": states(scheduler),
        "rounds": scheduler.state.round,
        "free_bytes": free_bytes,
        "accepts": not disk.why_full(),
        "containment": daemon.place.contained(),
        "limits_kept": daemon.place.kept(),
        "journal_locked_s": scheduler.journal.locked_s(),
        "you": person.name,
        "operator": person.operator,
    }


def tenants(scheduler: Scheduler) -> list[dict[str, Any]]:
    """All tenants with their quotas and what they use."""
    shared = scheduler.guard.tenants()
    if shared is None:
        return []
    requests = {record.number: record.request for record in scheduler.store.unsettled() if not record.state.ended}
    held = steady(lambda: dict(scheduler.state.held_gpus))
    return tenants_told(shared, requests, held, scheduler.state.memory)


def states(scheduler: Scheduler) -> dict[str, int]:
    """How many jobs are in each state."""
    found = Counter(record.state for record in scheduler.store.unsettled())
    found.update(scheduler.store.past.states)
    return {str(state): found.get(state, 0) for state in JobState}


@lru_cache(maxsize=20_000)
def _in_short(command: tuple[str, ...]) -> str:
    """A command as one would type it, cut where it is long."""
    words, length = [], 0
    for word in command:
        words.append(word if word.isalnum() else shlex.quote(word[:MOST_SHOWN]))
        length += len(word) + 1
        if length > MOST_SHOWN:
            break
    return " ".join(words)[:MOST_SHOWN]
