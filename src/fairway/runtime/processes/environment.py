"""The environment of a job's processes, and the file of its reports.

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
from typing import Any, NamedTuple

from fairway.runtime.jobs.records import Attempt, JobRecord
from fairway.runtime.processes.executors import hosting, seat_command, socket_of
from fairway.runtime.processes.gang import ANY_PORT, Gang, GangNode
from fairway.runtime.processes.log_tail import list_anew
from fairway.runtime.processes.site import Member

LOG_BYTES = 100 * 1024 * 1024
"""A rank's log is cut when it has grown to this size. One older piece is kept."""
ASKS_PORT = "master_port"
"""Says in a launch that the site has to choose the port at which its ranks meet."""
MOST_LINE = 65_536
MOST_READ = 4 * 1024 * 1024
"""The most bytes of a report that are read at a time."""
MOST_LINES, MOST_PARSED = 200, 2 * MOST_LINE
"""The most lines and bytes of these that are taken in at a time: the newest ones."""
_SAVED = b'"checkpoint"'
_TERMINAL = "xterm-256color"
"""What a pseudo-terminal is said to be, unless the job's own `TERM` says something that can draw."""
_CLEAN_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where jobs of other accounts look for programs if they do not say where: never where root does."""
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
    """What a keeper on this machine has to start. `devices` names the GPUs for CUDA; None if they are virtual.

    `mps` says by which MPS daemon the job shares its GPU, if it does.
    """
    here = GangNode(Member(socket.gethostname()), tuple(attempt.gpus), devices)
    return launch_over(record, attempt, folder, [here], log_bytes=log_bytes, mps=mps)


def launch_over(
    record: JobRecord,
    attempt: Attempt,
    folder: Path,
    places: Sequence[GangNode],
    *,
    log_bytes: int = LOG_BYTES,
    mps: Mapping[str, Any] | None = None,
    gpu_type: str = "",
) -> dict[str, Any]:
    """What keepers on these machines have to start, in the order of ranks: a launch, or one with `parts`.

    If the launch says `master_port`, the site has to choose the port (`with_port`).
    """
    gang = Gang(places, per_gpu=record.request.processes == "per_gpu")
    here = all(place.is_here for place in places)
    meets = gang.is_group or record.request.slurm_env
    port = str(free_port()) if meets and here else ANY_PORT
    start = _Start(record, attempt, folder, gang, port, gpu_type)
    parts = [_part(start, node, log_bytes, mps) for node in range(len(places))]
    asks = {ASKS_PORT: True} if meets and not here else {}
    if len(parts) == 1:
        return parts[0] | asks
    for node, part in enumerate(parts):
        part |= {"directory": str(start.directory(node)), "part": node, "of_parts": len(parts)}
    return {"parts": parts, "account": account_of(record)} | asks


def with_port(launch: Mapping[str, Any], port: int) -> dict[str, Any]:
    """The same launch, with the port at which its ranks meet. It is free on the node of rank 0."""
    told = {name: value for name, value in launch.items() if name != ASKS_PORT}
    if "parts" in told:
        return told | {"parts": [with_port(part, port) for part in told["parts"]]}
    ranks = [{**rank, "env": {**rank["env"], **_met_at(rank["env"], port)}} for rank in told["ranks"]]
    return told | {"ranks": ranks}


def _met_at(env: Mapping[str, str], port: int) -> dict[str, str]:
    return {name: str(port) for name in ("MASTER_PORT", "FAIRWAY_TASKS_PORT") if name in env}


class _Start(NamedTuple):
    """An attempt that is about to start."""

    record: JobRecord
    attempt: Attempt
    folder: Path
    gang: Gang
    port: str
    gpu_type: str

    @property
    def is_script(self) -> bool:
        """Whether it is a batch script: what its `srun` starts are ranks, but it is not one."""
        return self.record.request.slurm_env and not self.gang.per_gpu

    def directory(self, node: int | None = None) -> Path:
        """Where its files are, and those of the keeper on a node of several."""
        whole = self.folder / f"attempt-{self.attempt.number}"
        return whole if node is None or len(self.gang.places) == 1 else whole / f"node-{node}"


def _part(start: _Start, node: int, log_bytes: int, mps: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the keeper on one node has to start. Its logs are named by rank, and all are in one folder."""
    record, place = start.record, start.gang.places[node]
    request = record.request
    common = _common(start, node) | ({} if mps is None else mps["env"])
    hosted_by, argv = None, list(request.command)
    if request.executor:
        python, state = argv[0], start.folder.parent.parent
        hosted_by = hosting(state / "executors", python, request.cwd, common, account_of(record), place.gpus[0])
        common["FAIRWAY_EXECUTOR"] = socket_of(hosted_by)
        argv = seat_command(python, request.executor, argv[1:])
    ranks = []
    if start.is_script and len(start.gang.places) > 1:
        # As with Slurm: the script runs on the first node, and the others wait for what its `srun` starts.
        argv = ["fairway-step", "serve"] if node else ["fairway-step", "script", *argv]
    for local, rank in enumerate(start.gang.ranks(node)):
        log = str(start.directory() / f"rank-{rank}.log")
        env = {**common, **_ranked(start, node, rank, local), "FAIRWAY_LOG": log}
        ranks.append({"argv": argv, "env": env, "log": log})
    left_s = None if request.limit_s is None else max(request.limit_s - record.ran_s, 0.1)
    return {
        "node": place.member.name,
        "ranks": ranks,
        "cwd": request.cwd,
        "grace_s": request.grace_s,
        "limit_s": left_s,
        "ran_s": record.ran_s,
        "log_bytes": log_bytes,
        "tty": request.tty,
        "account": account_of(record),
        "host_memory_bytes": request.host_memory_bytes,
        "cpus": request.cpus * len(place.gpus) / len(start.attempt.gpus),
        "suspends": request.preempt == "suspend" and not request.executor,
        "gpus": list(place.gpus),
        "devices": None if place.devices is None else list(place.devices),
        "mps": None if mps is None else {name: mps[name] for name in ("program", "folder", "must")},
        "executor": hosted_by,
        **_jobs_have,
    }


def _common(start: _Start, node: int) -> dict[str, str]:
    """The variables of all processes on a node."""
    record, attempt, folder, gang, port, gpu_type = start
    request = record.request
    common = {
        **_beneath(account_of(record)),
        # Into a file, Python would write whole blocks only, and nobody would see how far the job is.
        "PYTHONUNBUFFERED": "1",
        **gang.interface(node),
        **request.env,
        **_own(record, attempt, folder),
        **gang.variables(node),
        **({"FAIRWAY_GPU_SHARE": f"{request.gpu_share:g}"} if request.gpu_share < 1 else {}),
        **({"FAIRWAY_GPU_TYPE": gpu_type} if gpu_type else {}),
    }
    if len(gang.places) > 1:
        common["FAIRWAY_NODE_DIR"] = str(start.directory(node))
        common["FAIRWAY_NODE_INTERFACE"] = gang.places[node].member.interface
    if request.tty and common.get("TERM", "dumb") in ("", "dumb", "unknown"):
        common["TERM"] = _TERMINAL
    if start.is_script:
        common |= {"FAIRWAY_TASKS_ADDR": gang.places[0].member.address, "FAIRWAY_TASKS_PORT": port}
    if "SKYPILOT_NODE_RANK" in request.env:
        common |= gang.skypilot(node)
    return common | (gang.slurm(node, record, attempt) if request.slurm_env else {})


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


def _beneath(account: str) -> dict[str, str]:
    """What a job finds as far as its owner says nothing: some of our own variables, but if it is another account's only
    what a login sets. What root has in its shell is not for others."""
    if not account:
        return {name: os.environ[name] for name in _KEPT if name in os.environ}
    clean = {"PATH": _CLEAN_PATH, "LANG": os.environ.get("LANG", "C.UTF-8")}
    try:
        found = pwd.getpwnam(account)
    except KeyError:
        return clean
    return clean | {"HOME": found.pw_dir, "USER": account, "LOGNAME": account, "SHELL": found.pw_shell or "/bin/sh"}


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


def _ranked(start: _Start, node: int, rank: int, local: int) -> dict[str, str]:
    """The variables that tell a process its rank: as torchrun sets them if it is one of a group, and Fairway's own."""
    is_rank = start.gang.is_group and not start.is_script
    told = {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(start.gang.world if is_rank else 1)}
    ours = {f"FAIRWAY_{name}": value for name, value in told.items()}
    if start.record.request.slurm_env:
        ours |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}
    if not is_rank:
        return ours
    again = {"TORCHELASTIC_RESTART_COUNT": str(start.attempt.number - 1)}
    return ours | told | start.gang.group(node, start.port) | again


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

    def new_lines(self, *, final: bool = False) -> Iterator[dict[str, Any]]:
        """The reports since the last time. Lines that are no reports are skipped.

        `final`: nobody writes any more, so the last line needs no end.
        """
        if final:
            list_anew(self.path.parent)
        part = self._new_part()
        # What follows the last end of a line is not complete yet.
        end = len(part) if final else part.rfind(b"\n") + 1
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
    lines = part[begin:end].removesuffix(b"\n").split(b"\n")
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
