"""This machine as a site: keepers of attempts are started, signalled and found again.

Everything that has to outlive the scheduler is in the attempt's directory (see `keeper`). A process is identified by
its pid and its start time, so a reused pid is never taken for ours. The pidfd of a keeper tells when it ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fairway
from fairway.core.batch import Split
from fairway.runtime.processes import environment, executors, keeper
from fairway.runtime.processes.containment import TOKEN, Containment, HostLimits, keeper_of, kill_strays
from fairway.runtime.processes.environment import ReportReader
from fairway.runtime.processes.gpu_loads import GpuLoads
from fairway.runtime.processes.host_size import HostSize, this_machine
from fairway.runtime.processes.machine import ForeignProcesses, Nvml
from fairway.runtime.processes.movable_memory import MovableMemory
from fairway.runtime.processes.ranks import HANDLED
from fairway.runtime.processes.site import (
    LOST,
    GpuLoad,
    GpuMemory,
    Member,
    MemoryPlace,
    Moment,
    Outcome,
    Over,
    Report,
    Sight,
)
from fairway.runtime.processes.startable import Startable, StartCheck

NOBODY = [0, -1]
"""Stands for the keeper of an attempt that has not started and never will."""
HURRY_S = keeper.HURRY_S
_READ_AGAIN_S = 0.5
"""How long to wait before files of an attempt that could not be read are read again."""
_GONE = "gone-"
"""How the names of folders begin whose jobs are gone."""
NODE = "FAIRWAY_KEEPER_NODE"
"""The environment variable of a keeper that names its machine."""
_ROOT = str(Path(fairway.__file__).resolve().parents[1])
_KEEPER = (
    "import sys; sys.path.append(sys.argv[1]); from fairway.runtime.processes import keeper; keeper.main()",
    _ROOT,
)
"""The program of a keeper. It is imported, so that it does not have to be compiled each time."""
_TAIL_BYTES = 8192
_OUT_OF_MEMORY = (b"out of memory", b"outofmemoryerror", b"memoryerror", b"cannot allocate memory", b"bad_alloc")


@dataclass
class Running:
    """A live keeper. `pidfd` becomes readable when it ends. `gpus` are the numbers of its GPUs on this machine."""

    directory: Path
    pid: int
    start: int
    pidfd: int
    child: subprocess.Popen[bytes] | None = None
    gpus: tuple[int, ...] = ()

    def signal(self, signo: int) -> None:
        """Signal the keeper, and never a later process with the same pid."""
        try:
            signal.pidfd_send_signal(self.pidfd, signo)
        except ProcessLookupError:
            return

    def stop(self, *, hurry: bool = False) -> None:
        """Ask the ranks to save and stop. They are killed after their grace period.

        `hurry`: what they would save is not needed. Suspended ranks then have only `HURRY_S`: they have to go on in
        order to stop, and their GPUs may belong to another job by now.
        """
        if hurry and not self._leave_word("hurry", str(HURRY_S)):
            self._leave_mark("hurry")
        self.signal(signal.SIGTERM)

    @property
    def stopping(self) -> bool:
        """Whether the keeper has asked the ranks to stop, for any reason. They cannot be suspended any more."""
        return (self.directory / "stopping").exists()

    def pause(self) -> None:
        """Suspend the ranks in place."""
        self._want_paused("yes")
        self.signal(signal.SIGUSR1)

    def go_on(self, *, keep: bool = True) -> None:
        """Let suspended ranks go on."""
        if self._wish().get("memory") == "out":
            self._leave_word("memory", json.dumps({"memory": "in", "keep": keep}))
        self._want_paused("no")
        self.signal(signal.SIGUSR2)

    def _want_paused(self, word: str) -> None:
        if not self._leave_word("paused", word):
            # Without the file, the signal alone counts. An old file would override the signal.
            with contextlib.suppress(OSError):
                (self.directory / "paused").unlink(missing_ok=True)

    def throttle(self, part: float) -> bool:
        """Let the ranks compute only this part of the time, or all of it (1). False if that could not be written."""
        said = self._leave_word("throttle", repr(part))
        self.signal(signal.SIGURG)
        return said

    @property
    def throttled(self) -> float:
        """The part of the time in which the ranks were last told to compute."""
        try:
            return float((self.directory / "throttle").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 1.0

    @property
    def memory(self) -> MemoryPlace:
        """Where the GPU memory of the ranks is, as their keeper says."""
        try:
            told = json.loads((self.directory / "where.json").read_text(encoding="utf-8"))
            about = (int(told["bytes"]), tuple(map(str, told["ways"])), float(told["seconds"]), str(told["problem"]))
            return MemoryPlace(told["place"], *about)
        except (OSError, ValueError, KeyError, TypeError):
            return MemoryPlace()

    def move_out(self, most_bytes: int, *, held_bytes: int = 0, everything: bool = False) -> bool:
        """Ask the keeper to have the GPU memory of suspended ranks moved out."""
        wish = {"memory": "out", "most_bytes": most_bytes, "held_bytes": held_bytes, "all": everything}
        said = self._leave_word("memory", json.dumps(wish))
        self.signal(signal.SIGURG)
        return said

    @property
    def ready_bytes(self) -> int:
        """The host memory that the ranks were told to get ready, or kept after a move."""
        wish = self._wish()
        kept = self.memory.bytes if wish.get("memory") == "in" and wish.get("keep") else 0
        return int(wish["most_bytes"]) if wish.get("memory") == "pin" else kept

    def _wish(self) -> dict[str, Any]:
        """What was last said about the memory of the ranks."""
        try:
            return dict(json.loads((self.directory / "memory").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}

    def get_ready(self, most_bytes: int) -> None:
        """Let running ranks get host memory ready for a move."""
        if self._leave_word("memory", json.dumps({"memory": "pin", "most_bytes": most_bytes})):
            self.signal(signal.SIGURG)

    def tell_plan(self, place: int | None) -> bool:
        """Tell the executor of a job how many others would go on before it. False if that could not be written."""
        return self._leave_word("in_plan", "" if place is None else str(place))

    def want(self, batch: Split, gpus: int) -> bool:
        """Ask the ranks to work through their batch like this. False if that could not be written."""
        told = {"local": batch.local, "accumulation": batch.accumulation, "gpus": gpus}
        return self._leave_word("wanted.json", json.dumps(told))

    def set_limit(self, limit_s: float | None) -> None:
        """Give the attempt another time limit, counted over all attempts. Its keeper reads it within a second."""
        path = self.directory / "launch.json"
        try:
            launch = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise OSError(f"{path} is damaged") from None
        launch["limit_s"] = None if limit_s is None else max(limit_s - launch.get("ran_s", 0.0), 0.1)
        keeper.write_over(path, launch)

    def _leave_word(self, name: str, text: str) -> bool:
        """Write a file for the keeper or the ranks, whole or not at all. Returns whether there was room for it."""
        scratch = self.directory / f"{name}.{os.getpid()}"
        try:
            scratch.write_text(text, encoding="ascii")
            # Ranks of other users read some of them.
            scratch.chmod(0o644)
            scratch.replace(self.directory / name)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            return False
        return True

    def _leave_mark(self, name: str) -> None:
        """Make a file for the next scheduler on a full disk: another name for one that is there needs no room."""
        with contextlib.suppress(OSError):
            os.link(self.directory / "launch.json", self.directory / name)
            folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @property
    def ended(self) -> bool:
        """Whether the keeper is gone."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the pidfd of a keeper that has ended."""
        os.close(self.pidfd)
        if self.child is not None:
            self.child.wait()


def start_keeper(directory: Path, launch: Mapping[str, Any], *, nobodys_child: bool = False) -> Running:
    """Make the directory of an attempt and start it. The attempt goes on if the scheduler ends.

    `nobodys_child`: it also goes on if somebody kills this process with all of its children.
    """
    make_folder(directory)
    keeper.write_over(directory / "launch.json", launch)
    how = (keeper.NOBODYS_CHILD,) if nobodys_child else ()
    # Signals that come before the keeper is ready for them must wait, not end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        with _private_log(directory / "keeper.log") as errors:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", *_KEEPER, *how, str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if nobodys_child else subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                # With the token, a rank that has not begun its program yet is found as well.
                env={TOKEN: str(launch.get("token", "")), **({NODE: launch["node"]} if "node" in launch else {})},
                start_new_session=not nobodys_child,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    gpus = tuple(launch.get("gpus", ()))
    if not nobodys_child:
        return Running(directory, child.pid, keeper.started_at(child.pid), os.pidfd_open(child.pid), child, gpus)
    told, _ = child.communicate()
    try:
        pid = int(told)
        return Running(directory, pid, keeper.started_at(pid), os.pidfd_open(pid), gpus=gpus)
    except (ValueError, ProcessLookupError):
        said = tail(directory / "keeper.log").decode(errors="replace").strip().rpartition("\n")[2]
        raise OSError(f"its keeper has ended at once{f': {said}' if said else ''}") from None


def make_folder(path: Path) -> None:
    """Make a folder that only our user can change. Jobs of other users may pass through it, if there can be any.

    `OSError` if it exists and is not ours: a job must not choose what is in its next folder.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "is not a folder of the scheduler's user", str(path))
    mode = 0o711 if os.geteuid() == 0 else 0o700
    if stat.S_IMODE(about.st_mode) != mode:
        path.chmod(mode)


def scratch_folder() -> Path:
    """The folder of this user for what belongs to one machine, on every machine of a cluster."""
    return Path("/tmp") / f"fairway-{os.geteuid()}"


def make_job_folder(folder: Path, account: str) -> None:
    """Make the folder of a job whose processes run as `account`."""
    for one in (folder.parent, folder):
        make_folder(one)
    (folder / "checkpoints").mkdir(mode=0o700, exist_ok=True)
    environment.hand_over(folder, account)


def delete_folder(folder: Path) -> None:
    """Delete a folder with all that is in it. Links are not followed. What cannot be deleted stays."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and os.geteuid() != 0:
        # A job may have left directories that even their owner cannot change.
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                Path(path).chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _private_log(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab")


def find_attempt(directory: Path) -> Running | Outcome | None:
    """What has become of an attempt that an earlier scheduler started: it runs, it has ended, or it never began (None).

    In the last case it never will begin: a keeper that is about to begin finds that `keeper.json` exists already.
    """
    ended = outcome_of(directory)
    if ended is not None:
        return ended
    if not directory.exists() or keeper.write_new(directory / "keeper.json", NOBODY):
        return None
    pid, started, boot = keeper_of(directory)
    if [pid, started] == NOBODY:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError, ValueError):
        return outcome_of(directory) or lost_outcome(directory)
    if keeper.started_at(pid) != started or boot != keeper.boot_id():
        os.close(pidfd)
        return outcome_of(directory) or lost_outcome(directory)
    return Running(directory, pid, started, pidfd, gpus=_gpus_of(directory))


def _gpus_of(directory: Path) -> tuple[int, ...]:
    """The GPUs of an attempt, as its launch says."""
    try:
        return tuple(map(int, json.loads(keeper.read_own(directory / "launch.json"))["gpus"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def is_given_up(directory: Path) -> bool:
    """Whether the ranks of an attempt were told that their work is not needed any more: the job was cancelled."""
    return (directory / "hurry").exists()


def living_keeper(directory: Path) -> int | None:
    """The pid of an attempt's keeper, if it lives. Unlike `find_attempt`, this lets an attempt begin later."""
    pid, started, boot = keeper_of(directory)
    lives = started >= 0 and keeper.started_at(pid) == started and boot == keeper.boot_id()
    return pid if lives and outcome_of(directory) is None else None


def lost_outcome(directory: Path) -> Outcome:
    """The outcome of an attempt whose keeper is gone: it ended when it was last known to live."""
    seen_s = [0.0]
    for path in (directory / "keeper.json", directory / "sign", *_logs(directory)):
        with contextlib.suppress(OSError):
            seen_s.append(path.stat().st_mtime)
    date_s = min(max(seen_s), time.time())
    try:
        boot, uptime_s, ran_s = json.loads(keeper.read_own(directory / "sign"))
        return LOST._replace(ended=Moment(date_s, str(boot), float(uptime_s)), ran_s=float(ran_s))
    except (OSError, ValueError, TypeError):
        # A keeper of an earlier version leaves no such sign, and a crash of the machine may have spoilt it.
        return LOST._replace(ended=Moment(date_s))


def outcome_of(directory: Path) -> Outcome | None:
    """How an attempt ended, if its keeper has written that down. `OSError` if that cannot be read now."""
    try:
        told = json.loads((directory / "exit.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    try:
        ended = Moment(told["time"], told.get("boot", ""), told.get("uptime_s", 0.0))
        about = (told["cause"], told["killed"], told["problem"], ended, told.get("memory_kills", -1))
        return Outcome(tuple(told["codes"]), *about, told.get("stop_s"), told.get("ran_s"))
    except (ValueError, KeyError, TypeError):
        return None


def said_no_memory(directory: Path, ranks: int) -> bool:
    """Whether the log of a rank ends with the words of a program that ran out of memory."""
    ends = [_end_of(log) for log in _logs(directory, ranks)]
    return any(mark in end for mark in _OUT_OF_MEMORY for end in ends)


def _logs(directory: Path, ranks: int | None = None) -> list[Path]:
    """The logs of an attempt's ranks, or of the first `ranks`. Those of the parts of a gang are beside the parts."""
    if not directory.name.startswith("node-"):
        return [directory / f"rank-{rank}.log" for rank in range(ranks)] if ranks else [*directory.glob("rank-*.log")]
    try:
        launch = json.loads(keeper.read_own(directory / "launch.json"))
        return [Path(rank["log"]) for rank in launch["ranks"][:ranks]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _end_of(log: Path) -> bytes:
    """The end of a log in lower case, with the end of its older piece if it was just cut."""
    end = tail(log)
    if len(end) < _TAIL_BYTES:
        end = tail(log.with_name(log.name + ".1"), _TAIL_BYTES - len(end)) + end
    return end.lower()


def tail(log: Path, most_bytes: int = _TAIL_BYTES) -> bytes:
    """The end of a file."""
    try:
        # Do not wait: a job may have put a pipe in its place.
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, most_bytes, max(0, os.fstat(fd).st_size - most_bytes))
    except OSError:
        return b""
    finally:
        os.close(fd)


class JobFolders:
    """What a site does with the folders of jobs, wherever their processes run."""

    def reports(self, folder: Path, read_bytes: int, *, final: bool = False) -> Report:
        """What a job has reported since its file was last read. `final`: its attempt has ended."""
        reader = ReportReader(folder / "reports.jsonl", read_bytes)
        lines = list(reader.new_lines(final=final))
        return Report(lines, reader.offset)

    def discard(self, folder: Path) -> None:
        """Set the folder of a job aside, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            folder.rename(folder.with_name(f"{_GONE}{folder.name}"))

    def sweep(self, jobs: Path) -> None:
        """Delete all folders in `jobs` that were set aside."""
        for folder in jobs.glob(f"{_GONE}*"):
            delete_folder(folder)


class LocalSite(JobFolders):
    """The attempts on this machine. Each has a control group of its own, where there can be any.

    `memory` can move the memory of GPUs. `nvml` says what computes on the GPUs `devices`, and which files are the GPUs
    that an attempt was not granted and cannot open. Both are None if GPUs are virtual. `executors` is the folder of the
    processes that host jobs. With `nobodys_children`, keepers live on when this process is killed with its children.
    """

    def __init__(
        self,
        containment: Containment | None = None,
        memory: MovableMemory | None = None,
        *,
        nvml: Nvml | None = None,
        devices: Sequence[str] | None = None,
        executors: Path | None = None,
        nobodys_children: bool = False,
    ) -> None:
        self._nobodys_children = nobodys_children
        self._nvml = nvml
        self._start_check, self._size = StartCheck(), this_machine()
        self._gpus = None if nvml is None else ForeignProcesses(nvml, devices or (), self._ours)
        self._loads = None if nvml is None else GpuLoads(nvml, devices or ())
        self._executors = executors
        self._containment = containment or Containment(None, why="not asked for")
        self._memory = memory
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._by_fd: dict[int, tuple[Running, str]] = {}
        self._unread: list[tuple[Running, str]] = []

    def start(self, directory: Path, launch: Mapping[str, Any]) -> Running:
        """Start an attempt. `OSError` if the machine cannot."""
        make_job_folder(directory.parent, launch["account"])
        return self.begin(directory, launch)

    def begin(self, directory: Path, launch: Mapping[str, Any]) -> Running:
        """Start an attempt, or the part of one on this machine, in the folder of a job that is there."""
        limits = HostLimits(launch.get("host_memory_bytes", 0), launch.get("cpus", 0.0))
        granted = launch.get("devices")
        numbers = {} if self._nvml is None else self._nvml.device_numbers
        shut = [] if granted is None else [numbers[one] for one in numbers.keys() - granted]
        group = self._containment.make(launch["token"], limits, sorted(shut))
        if self._memory is not None:
            launch = self._memory.movable(launch)
        if launch.get("executor"):
            own = Path(launch["executor"]["folder"])
            for one in (own.parent, own):
                make_folder(one)
            executors.ensure(launch["executor"], launch.get("umask", 0o022), launch.get("open_files"))
        told = launch if group is None else {**launch, "cgroup": str(group)}
        how = {"nobodys_child": True} if self._nobodys_children else {}
        running = start_keeper(directory, told, **how)
        self._watch(running, launch["token"])
        return running

    def find(self, directory: Path, token: str) -> Running | Outcome | None:
        """An attempt of an earlier scheduler: it lives, it has ended, or it never began and never will."""
        found = find_attempt(directory)
        if isinstance(found, Running):
            self._watch(found, token)
        elif found is not None:
            if found.cause == "lost":
                kill_strays(directory, token)
            return with_words(found, directory)
        return found

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that its work is not needed any more: its job was cancelled."""
        return is_given_up(directory)

    def gpu_memory(self, gpu: int) -> GpuMemory | None:
        """The memory of a GPU now; None if GPUs are virtual, or the driver does not say."""
        return None if self._memory is None else self._memory.gpu_memory(gpu)

    def member(self, node: int) -> Member:
        """This machine."""
        return Member(socket.gethostname())

    def largest(self) -> HostSize:
        """The size of this machine."""
        return self._size

    def start_problem(self, wish: Startable) -> str:
        """Why a program could not be started here; "" if it could, or nobody can say. Any thread may call this."""
        return self._start_check.problem(wish)

    def blocked(self) -> Mapping[int, str]:
        """The GPUs that cannot be used now, by number with the reason. Any thread may call this."""
        return {} if self._gpus is None else self._gpus.look()

    def gpu_loads(self) -> Mapping[int, GpuLoad]:
        """How busy and how full GPUs were a few seconds ago. Any thread may call this."""
        return {} if self._loads is None else self._loads.look()

    def lines(self) -> Sequence[str]:
        """Nothing that would not be seen elsewhere."""
        return ()

    def sight(self, handle: Running) -> Sight:
        """What is seen of an attempt now. Any thread may call this."""
        cpu_s, gpus = keeper.cpu_s(handle.pid), self._gpus
        if gpus is None:
            return Sight(cpu_s)
        return Sight(cpu_s, gpus.busy_percent(handle.gpus), self._used_bytes(gpus, handle))

    def _used_bytes(self, gpus: ForeignProcesses, handle: Running) -> int:
        """The most that an attempt has on a GPU. The driver may not say."""
        with contextlib.suppress(Exception):
            return max((gpus.memory(gpu).get(handle.pid, 0) for gpu in handle.gpus), default=0)
        return 0

    def _ours(self) -> dict[int, set[int]]:
        """The pids of what keeps our jobs on each GPU: the keepers of attempts, and the wardens of executors."""
        found = {} if self._executors is None else executors.wardens(self._executors)
        for running, _ in list(self._by_fd.values()):
            for gpu in running.gpus:
                found.setdefault(gpu, set()).add(running.pid)
        return found

    def wait(self, seconds: float) -> Sequence[Over]:
        """The attempts that have ended. Waits for one, at most this many seconds."""
        gone, self._unread = self._unread, []
        longest_s = _READ_AGAIN_S if gone else 3600.0
        for fd, _ in self._poll.poll(max(0.0, min(seconds, longest_s)) * 1000.0):
            if fd == self._wake_read:
                self._drain()
            else:
                self._poll.unregister(fd)
                gone.append(self._by_fd.pop(fd))
        return [over for one in gone if (over := self._end(*one)) is not None]

    def wake(self) -> None:
        """Make `wait` return now. Any thread may call this."""
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            return

    def _watch(self, running: Running, token: str) -> None:
        self._by_fd[running.pidfd] = running, token
        self._poll.register(running.pidfd, select.POLLIN)

    def _end(self, running: Running, token: str) -> Over | None:
        """An attempt's keeper is gone: find out how it ended. None if its files cannot be read now."""
        try:
            outcome = outcome_of(running.directory)
            if outcome is None:
                kill_strays(running.directory, token, just_now=True)
                outcome = LOST
            over = Over(running, with_words(outcome, running.directory))
        except OSError:
            # Too many files are open, or the disk does not answer. That says nothing about how it ended.
            self._unread.append((running, token))
            return None
        running.close()
        return over

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return


def with_words(outcome: Outcome, directory: Path) -> Outcome:
    """An outcome, with what the logs say about it."""
    return outcome._replace(said_no_memory=said_no_memory(directory, len(outcome.codes)))
