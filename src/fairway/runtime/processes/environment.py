"""The environment of a job's processes: the variables that torchrun sets, Fairway's own, and the file of its reports.

The training library appends lines of JSON to that file. It is a file, not a connection: a job can write to it while no
scheduler runs, and the next scheduler reads it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.processes.executors import hosting, seat_command, socket_of

LOG_BYTES = 100 * 1024 * 1024
"""A rank's log is cut when it has grown to this size. One older piece is kept."""
MOST_LINE = 65_536
MOST_READ = 4 * 1024 * 1024
"""The most bytes of a report that are read at a time."""
MOST_LINES, MOST_PARSED = 200, 2 * MOST_LINE
"""The most lines and bytes of these that are taken in at a time: the newest ones."""
_SAVED = b'"checkpoint"'
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "TZ")


_jobs_have: dict[str, int] = {"umask": 0o022}
"""What jobs have as their user set it, though the scheduler itself has something else."""


def keep_to_ourselves(open_files: int) -> None:
    """Make files of this process private from now on. Jobs of its user keep the umask and the limit that it had."""
    before = os.umask(0o077)
    _jobs_have["open_files"] = open_files
    if os.geteuid() != 0:
        _jobs_have["umask"] = before


def launch_of(
    record: JobRecord,
    attempt: Attempt,
    folder: Path,
    devices: Sequence[str] | None,
    *,
    log_bytes: int = LOG_BYTES,
    mps: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a keeper has to start. `devices` names the GPUs for CUDA; None if they are virtual.

    `mps` says by which MPS daemon the job shares its GPU, if it does.
    """
    request = record.request
    world = len(attempt.gpus) if request.processes == "per_gpu" else 1
    common = {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        **_at_home(account_of(record)),
        **request.env,
        **_own(record, attempt, folder),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RESTART_COUNT": str(attempt.number - 1),
        "CUDA_VISIBLE_DEVICES": "" if devices is None else ",".join(devices),
        **({} if mps is None else mps["env"]),
        **({"FAIRWAY_GPU_SHARE": f"{request.gpu_share:g}"} if request.gpu_share < 1 else {}),
    }
    if request.slurm_env:
        common |= _slurm(record, attempt, world)
    hosted_by, argv = None, list(request.command)
    if request.executor:
        python, state = argv[0], folder.parent.parent
        hosted_by = hosting(state / "executors", python, request.cwd, common, account_of(record), attempt.gpus[0])
        common["FAIRWAY_EXECUTOR"] = socket_of(hosted_by)
        argv = seat_command(python, request.executor, argv[1:])
    logs = [str(folder / f"attempt-{attempt.number}" / f"rank-{rank}.log") for rank in range(world)]
    ranks = [
        {
            "argv": argv,
            "env": {**common, **_ranked(rank, slurm=request.slurm_env), "FAIRWAY_LOG": log},
            "log": log,
        }
        for rank, log in enumerate(logs)
    ]
    left_s = None if request.limit_s is None else max(request.limit_s - record.ran_s, 0.1)
    return {
        "ranks": ranks,
        "cwd": request.cwd,
        "grace_s": request.grace_s,
        "limit_s": left_s,
        "ran_s": record.ran_s,
        "log_bytes": log_bytes,
        "account": account_of(record),
        "host_memory_bytes": request.host_memory_bytes,
        "cpus": request.cpus,
        "suspends": request.preempt == "suspend" and not request.executor,
        "gpus": list(attempt.gpus),
        "devices": None if devices is None else list(devices),
        "mps": None if mps is None else {name: mps[name] for name in ("program", "folder", "must")},
        "executor": hosted_by,
        **_jobs_have,
    }


def own_account() -> str:
    """The name of the scheduler's own user; its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def account_of(record: JobRecord) -> str:
    """The user that a job's processes run as; "" for the scheduler's own user. Only root's scheduler has others.

    A job that does not say whose it is was taken by a scheduler of another user. It is never run as root.
    """
    account = record.request.account
    if os.geteuid() != 0:
        return ""
    if not account:
        raise PermissionError(errno.EPERM, "the job does not say as which user it runs; submit it again")
    return account if account != "root" else ""


def hand_over(folder: Path, account: str) -> None:
    """Give a job's own files to the account that it runs as. If the account is gone, the start of the job fails."""
    if not account:
        return
    with contextlib.suppress(KeyError):
        owner = pwd.getpwnam(account)
        os.chown(folder / "checkpoints", owner.pw_uid, owner.pw_gid)
        (folder / "checkpoints").chmod(0o700)
        report = os.open(folder / "reports.jsonl", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.fchown(report, owner.pw_uid, owner.pw_gid)
        os.close(report)


def _at_home(account: str) -> dict[str, str]:
    """The variables that a login sets, for an account that is not ours."""
    if not account:
        return {}
    try:
        found = pwd.getpwnam(account)
    except KeyError:
        return {}
    return {"HOME": found.pw_dir, "USER": account, "LOGNAME": account, "SHELL": found.pw_shell or "/bin/sh"}


def _own(record: JobRecord, attempt: Attempt, folder: Path) -> Mapping[str, str]:
    request = record.request
    return {
        "FAIRWAY_JOB_ID": record.id,
        "FAIRWAY_JOB_NAME": request.name,
        "FAIRWAY_ATTEMPT": attempt.token,
        "FAIRWAY_RESTART_COUNT": str(attempt.number - 1),
        "FAIRWAY_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "FAIRWAY_REPORT": str(folder / "reports.jsonl"),
        "FAIRWAY_GRACE_SECONDS": f"{request.grace_s:g}",
        "FAIRWAY_RESUME": "1" if attempt.resume else "0",
        "FAIRWAY_REASON": record.reason,
        **({} if request.array_task is None else {"FAIRWAY_ARRAY_TASK_ID": str(request.array_task)}),
        **({"FAIRWAY_GPU_MEMORY": str(request.memory_bytes)} if request.memory_bytes else {}),
        **({} if request.batch_size is None else {"FAIRWAY_BATCH_SIZE": str(request.batch_size)}),
    }


def _ranked(rank: int, *, slurm: bool) -> dict[str, str]:
    """The variables that tell a process its rank."""
    names = ("RANK", "LOCAL_RANK", *(("SLURM_PROCID", "SLURM_LOCALID") if slurm else ()))
    return dict.fromkeys(names, str(rank))


def _slurm(record: JobRecord, attempt: Attempt, world: int) -> dict[str, str]:
    """The variables that Slurm sets for a batch job. This machine is the only node, so all tasks are on it."""
    request, array = record.request, record.id.split("_")[0]
    asked = request.env.get("FAIRWAY_TASKS", "")
    tasks = asked if world == 1 and asked.isdecimal() else str(world)
    host, gpus = socket.gethostname(), str(len(attempt.gpus))
    return {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), array),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), tasks),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), "1"),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST"), host),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS"), gpus),
        "SLURM_NODEID": "0",
        "SLURM_CPUS_ON_NODE": str(os.cpu_count() or 1),
        "SLURM_SUBMIT_DIR": request.cwd,
        "SLURM_JOB_NAME": request.name,
        "SLURM_JOB_USER": request.user,
        "SLURM_RESTART_COUNT": str(attempt.number - 1),
        **({"SLURM_JOB_PARTITION": request.queue} if request.queue else {}),
        **(
            {"SLURM_ARRAY_TASK_ID": str(request.array_task), "SLURM_ARRAY_JOB_ID": array}
            if request.array_task is not None
            else {}
        ),
    }


def free_port() -> int:
    """A port that no process listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ReportReader:
    """Reads a file from where it last stopped. A line counts when it is complete.

    What a job writes is not trusted: the path may be any kind of file, and lines may have any length. If there is too
    much, only the newest lines count, and the last one that says where a checkpoint is.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """The reports since the last time. Lines that are no reports are skipped."""
        part = self._new_part()
        # What follows the last end of a line is not complete yet.
        end = part.rfind(b"\n") + 1
        self.offset += end
        for line in _newest(part, end):
            report = _parsed(line)
            if report is not None:
                yield report

    def _new_part(self) -> bytes:
        """What was written since the last time, from the beginning of a line."""
        try:
            # Do not wait for a pipe in its place, and do not follow a link.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                return b""
            if about.st_size < self.offset:
                self.offset = 0
            begin = max(self.offset, about.st_size - MOST_READ)
            part = os.pread(fd, MOST_READ, begin)
        except OSError:
            return b""
        finally:
            os.close(fd)
        # If something was skipped, or a line is longer than all that is read, find the next line first.
        if begin > self.offset:
            skipped = part.find(b"\n") + 1 or len(part)
            self.offset, part = begin + skipped, part[skipped:]
        return part


def _newest(part: bytes, end: int) -> list[bytes]:
    """The last lines before `end`, and before them the last of the others that names a checkpoint."""
    begin, count = end, 0
    while begin and count < MOST_LINES and end - begin < MOST_PARSED:
        begin = part.rfind(b"\n", 0, begin - 1) + 1
        count += 1
    lines = part[begin:end].split(b"\n")[:-1]
    saved = part.rfind(_SAVED, 0, begin)
    if saved >= 0:
        lines.insert(0, part[part.rfind(b"\n", 0, saved) + 1 : part.find(b"\n", saved)])
    return lines


def _parsed(line: bytes) -> dict[str, Any] | None:
    if len(line) > MOST_LINE:
        return None
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None
