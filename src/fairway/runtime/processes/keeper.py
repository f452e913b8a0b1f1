"""The keeper of one attempt of a job: starts its ranks, passes signals on, and writes down how they ended.

It is a program of its own, needs only the standard library, and outlives the scheduler.
A scheduler that starts again finds in the attempt's directory which processes run and how they ended.

    launch.json   what to start, written by the scheduler
    keeper.json   the keeper's process; made once, by the keeper, or by a scheduler that finds that none has started
    sign          a sign of life, renewed every few seconds: the boot of the machine, the seconds since then, and how
                  long the ranks have run
    ranks.json    the processes that were started
    exit.json     how they ended; no process of the attempt is left then
    reserve       room for exit.json, taken at the start; it becomes exit.json, so a full disk does not lose an end
    paused        "yes" or "no": whether the ranks should be suspended in place
    throttle      the part of the time in which the ranks may compute, if that is not all of it
    eased-R       says that rank R keeps to the throttle by itself; the rank renews it all the time
    yields        says that the only rank looks at `paused` after every step
    rests         exists while that rank stands still between two steps
    memory, where.json, moves-PID, moved-PID
                  where the ranks' GPU memory is to be, and where it is (see `moves`)
    in_plan       how many jobs that stand still would go on before this one, for the executor that hosts it
    stopping      exists as soon as the ranks have been asked to stop
    hurry         how many seconds suspended ranks have to stop, if what they would save is not needed
    gang          says that ranks of the same gang have failed on another machine
    given-up      says that the scheduler has given up the machine, and that the ranks run elsewhere

A part of a gang over several nodes has the directory `attempt-N/node-K`, with the same files. Logs, and what concerns
all parts, are in `attempt-N` (see `siblings`).

Ranks that share a GPU by MPS need its daemon, which the keeper sees to (`mps`).

What the ranks write goes through a pipe or a pseudo-terminal: the keeper puts it into their logs and keeps these
within bounds.

Files are only trusted if the keeper's own user wrote them: ranks of other users can write to some directories near by.

Signals: SIGTERM asks the ranks to stop and kills them after their grace period, SIGUSR1 suspends them in place, SIGUSR2
lets them go on, SIGURG says that the throttle or the wanted place of GPU memory has changed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairway.runtime.processes.moves import MovedMemory
from fairway.runtime.processes.ranks import (
    CHECKPOINTED,
    HANDLED,
    RankLogs,
    RankTerms,
    prctl,
    problem_with,
    say,
    start_rank,
)
from fairway.runtime.processes.siblings import Siblings

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 1.0
"""How often changes of the time limit are looked for."""
_GANG_GRACE_S = 10.0
"""How long the other ranks have to stop when one of them has failed."""
_KILL_EVERY_S = 0.2
HURRY_S = 2.0
"""How long ranks have to stop if their GPUs belong to another job already."""
_SIGN_EVERY_S = 5.0
"""How often a keeper leaves a sign of life."""
_SIGN_BYTES = 128
_RESERVE_BYTES = 65_536
_FULL_RETRY_S = 1.0
_PERIOD_S, _LEAST_TURN_S, _LONGEST_PERIOD_S = 0.2, 0.05, 5.0
"""Throttled ranks compute and rest once in every period. The period is longer if a turn would be too short."""
_YIELD_S, _YIELD_LOOK_S = 0.25, 0.002
"""How long a rank that is to be suspended has to end its step, and how often the keeper looks whether it has."""
_EASED_S, _LOOK_AT_EASED_S = 3.0, 0.5
"""How long a rank's file `eased-R` counts, and how often the keeper looks for it."""
_OUTSIDERS_EVERY_S = 1.0
NOBODYS_CHILD = "--nobodys-child"
"""The argument of a keeper that leaves the process that started it, and writes its pid to the standard output."""


def write_new(path: Path, content: Any) -> bool:
    """Make a file with this content atomically, only if there is none. False if there is one."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    _write(scratch, content)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    finally:
        scratch.unlink()
    return True


def write_over(path: Path, content: Any) -> None:
    """Make or replace a file atomically. It is on disk when this returns."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        _write(scratch, content)
        scratch.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def _write(path: Path, content: Any) -> None:
    """Write a private file: it may hold a job's environment."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def read_own(path: Path) -> str:
    """The text of a file that only our user can have written. `OSError` if there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8") as file:
        about = os.fstat(fd)
        if about.st_uid != os.geteuid() or about.st_mode & 0o022 or not stat.S_ISREG(about.st_mode):
            raise PermissionError(errno.EPERM, "is not a file that only this user can write", str(path))
        return file.read()


def stat_fields(pid: int) -> list[str]:
    """The fields of a process's `stat` from its state on (field 3); empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name is in brackets and may itself have brackets.
    return text[text.rfind(")") + 2 :].split()


def started_at(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 if it is gone. With the pid it identifies a process."""
    fields = stat_fields(pid)
    return -1 if not fields or fields[0] in ("Z", "X") else int(fields[19])


def cpu_s(keeper: int) -> float:
    """CPU time that the processes under a keeper have used so far, with their children that have ended."""
    ticks = 0
    for pid in descendants(keeper):
        ticks += sum(int(one) for one in stat_fields(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def identity(pid: int) -> list[int]:
    """A process by pid and start."""
    return [pid, started_at(pid)]


def boot_id() -> str:
    """The id of this boot of the machine. Pids and start times of another boot mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def uptime_s() -> float:
    """Seconds since the machine was booted, with the time for which it slept. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def memory_kills() -> int:
    """How many processes the kernel has killed since boot because memory was short; -1 if it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return -1
    return -1


class Keeper:
    """Starts, signals and watches the ranks of one attempt."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.launch: dict[str, Any] = json.loads(read_own(directory / "launch.json"))
        self.ranks: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self.cause = ""
        self.kill_at_s = float("inf")
        self.sign_at_s = 0.0
        self.limit_s = float(self.launch.get("limit_s") or "inf")
        self.ran_s = 0.0
        self.launched_s = 0.0
        self.stopped = False
        self.killed = False
        self.asked_s: float | None = None
        self.logs = RankLogs(int(self.launch["log_bytes"]))
        self.group = Path(self.launch["cgroup"]) if self.launch.get("cgroup") else None
        self.mps: Any = None
        self.turns = Turns(self)
        self.memory = MovedMemory(self)
        self.siblings = Siblings(directory, self.launch, write_new)
        self.problem = ""
        self._words_at_s = 0.0

    def run(self) -> None:
        """Run from the start of the first rank to the end of the last process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        os.umask(0o077)
        if not write_new(self.directory / "keeper.json", [*identity(os.getpid()), boot_id()]):
            return
        self._reserve()
        self._leave_sign()
        # Before this process adopts orphans, which end with it: the daemon of MPS may be needed for longer.
        self.problem = self._begin_mps()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        kills = memory_kills()
        self.problem = self.problem or self._start_all()
        self._note_ranks()
        # Only now: a process with several threads should not fork.
        self.logs.start()
        seen_s = time.monotonic()
        while len(self.codes) < len(self.ranks):
            caught = signal.sigtimedwait(HANDLED, max(min(self._wait_s(), _POLL_S), 0.0))
            now_s = time.monotonic()
            self._count(now_s - seen_s)
            seen_s = now_s
            self._handle(caught.si_signo if caught else 0)
            self._reap()
            self._look_after(now_s)
        self.siblings.tell([*self.codes.values()], self.cause)
        self._clear()
        self.logs.finish()
        codes = [self.codes[pid] for pid in self.ranks]
        if self.mps is not None and any(codes) and not self.cause and not self.mps.answers():
            self.cause, self.problem = "lost", "the MPS daemon, through which it used its GPU, is gone"
        outcome = {"codes": codes, "cause": self.cause, "killed": self.killed, "problem": self.problem}
        outcome |= {"time": time.time(), "boot": boot_id(), "uptime_s": uptime_s(), "ran_s": self.ran_s}
        stop_s = None if self.asked_s is None else time.monotonic() - self.asked_s
        own_kills = self._group_kills()
        others = -1 if kills < 0 else memory_kills() - kills
        self._leave_group()
        self._tell({**outcome, "memory_kills": others if own_kills is None else own_kills, "stop_s": stop_s})
        if self.mps is not None:
            self.mps.end()

    def _count(self, seconds: float) -> None:
        """Count time that has passed as run time, unless the ranks are suspended."""
        if not self.stopped:
            self.ran_s += seconds

    def _begin_mps(self) -> str:
        """Let the ranks share their GPU by MPS, if the scheduler says so. Returns why they cannot, if they must."""
        told = self.launch.get("mps")
        if not told:
            return ""
        # Only now: most keepers do not need it, and they should start quickly.
        from fairway.runtime.processes.mps import MpsError, MpsUse, without_mps

        use = MpsUse(told["program"], Path(told["folder"]), *self._account())
        try:
            use.begin()
        except MpsError as error:
            if told["must"]:
                self._stop("start", 0.0)
                return str(error)
            say(f"{error}; the job shares its GPU without limits")
            for rank in self.launch["ranks"]:
                rank["env"] = without_mps(rank["env"])
            return ""
        self.mps = use
        return ""

    def _account(self) -> tuple[int, int]:
        """The user and group of the ranks; -1 for our own."""
        name = self.launch.get("account")
        if not name:
            return -1, -1
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
        return -1, -1

    def _reserve(self) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self.directory / "reserve", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(b" " * _RESERVE_BYTES)

    def _leave_sign(self) -> None:
        """If this machine goes down, this file tells the next scheduler until when the attempt ran, and how long."""
        with contextlib.suppress(OSError):
            fd = os.open(self.directory / "sign", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                # Always the same length, so that it is replaced in place and needs no more room.
                os.write(fd, json.dumps([boot_id(), uptime_s(), self.ran_s]).ljust(_SIGN_BYTES).encode())
            finally:
                os.close(fd)

    def _note_ranks(self) -> None:
        try:
            write_over(self.directory / "ranks.json", [identity(pid) for pid in self.ranks])
        except OSError as error:
            # The file only helps to find strays, and their environment identifies them as well.
            say(f"ranks.json cannot be written: {error}")

    def _tell(self, outcome: dict[str, Any]) -> None:
        """Write down how it ended. If the disk is full, wait for room: what is not written down counts as not done."""
        while True:
            try:
                if not self._tell_in_reserve(outcome):
                    write_over(self.directory / "exit.json", outcome)
                return
            except OSError as error:
                say(f"exit.json cannot be written: {error}")
                if not self.directory.exists():
                    # The directory was removed, so there is nothing left to tell.
                    return
                time.sleep(_FULL_RETRY_S)

    def _tell_in_reserve(self, outcome: dict[str, Any]) -> bool:
        """Write the end into the room that was taken at the start: no one else can have taken it meanwhile."""
        reserve = self.directory / "reserve"
        try:
            fd = os.open(reserve, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        with os.fdopen(fd, "wb") as file:
            # Spaces after a JSON text mean nothing, so the rest of the reserve may stay.
            file.write(json.dumps(outcome).encode())
            file.flush()
            os.fsync(fd)
        reserve.replace(self.directory / "exit.json")
        return True

    def _wait_s(self) -> float:
        now_s = time.monotonic()
        limit_s = float("inf") if self.stopped or self.cause else self.limit_s - self.ran_s
        return min(self.kill_at_s - now_s, limit_s, min(self.turns.next_s, self.memory.next_s) - now_s)

    def _group_kills(self) -> int | None:
        """How many processes of the control group were killed because its memory was used up, if that is counted."""
        if self.group is not None:
            with contextlib.suppress(OSError, ValueError):
                events = (self.group / "memory.events").read_text(encoding="ascii").split()
                return int(events[events.index("oom_kill") + 1])
        return None

    def _leave_group(self) -> None:
        if self.group is not None:
            with contextlib.suppress(OSError):
                self.group.rmdir()

    def processes(self) -> list[int]:
        """All live processes of the ranks: those in the control group, or our descendants."""
        if self.group is not None:
            with contextlib.suppress(OSError):
                return [int(pid) for pid in (self.group / "cgroup.procs").read_text(encoding="ascii").split()]
        return descendants(os.getpid())

    def _start_all(self) -> str:
        """Start every rank. Returns what went wrong, if something did; the ranks before it are then stopped."""
        for rank in self.launch["ranks"]:
            log = Path(rank["log"])
            try:
                terms = self._terms()
                with self.logs.taking(log, terms.user, terms.group, tty=bool(self.launch.get("tty"))) as out:
                    pid = start_rank(self._program(rank["argv"]), rank["env"], out, terms)
            except (KeyError, OSError, ValueError) as error:
                problem = problem_with(error, rank["argv"][0], self.launch["cwd"])
                with contextlib.suppress(OSError), log.open("a", encoding="utf-8", errors="replace") as out_text:
                    out_text.write(f"fairway: cannot start: {problem}\n")
                self._stop("start", 0.0)
                return problem
            self.ranks[pid] = len(self.ranks)
        return ""

    def _program(self, argv: list[str]) -> list[str]:
        """What a rank runs. The nodes of a batch job run a program of Fairway, wherever that is on this machine."""
        if argv[0] != "fairway-step":
            return argv
        # Only now: most keepers do not need it, and they should start quickly.
        from fairway.runtime.processes.step_nodes import program

        return program(argv)

    def _terms(self) -> RankTerms:
        """On what terms ranks run. A user that is not ours owns a directory for files."""
        about = (self.launch["cwd"], int(self.launch.get("umask", 0o022)), self.launch.get("open_files"), self.group)
        name = self.launch.get("account")
        if not name:
            return RankTerms(*about)
        found = pwd.getpwnam(name)
        for folder in (self.directory, self.directory.parent) if "of_parts" in self.launch else (self.directory,):
            shared = folder / "shared"
            with contextlib.suppress(FileExistsError):
                shared.mkdir(mode=0o700)
            os.chown(shared, found.pw_uid, found.pw_gid)
        return RankTerms(*about, found.pw_uid, found.pw_gid, tuple(os.getgrouplist(name, found.pw_gid)))

    def _handle(self, signo: int) -> None:
        if signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self.asked_s = time.monotonic() if self.asked_s is None else self.asked_s
            self._stop("request", self._grace_s())
        elif signo in (signal.SIGUSR1, signal.SIGUSR2):
            if self._is_to_pause(signo):
                self._pause()
            else:
                self.stopped = False
                self._go_on()
        elif signo == signal.SIGURG:
            self.turns.look()
            self.memory.look()

    def _go_on(self) -> None:
        if self.memory.away:
            self.memory.come_back()
        else:
            self.signal_all(signal.SIGCONT)
            self.turns.begin()

    def is_back(self) -> None:
        """The memory of the ranks is on the GPU again: they go on, unless they are to stand still."""
        if self.cause:
            return
        if self.stopped:
            self.stand_still()
        else:
            self.turns.begin()

    def give_up(self, problem: str) -> None:
        """Something that the ranks cannot live with has happened."""
        self.problem = problem
        self._stop("start", 0.0)

    def _grace_s(self) -> float:
        """How long the ranks have to stop. Suspended ranks may be on GPUs that now belong to another job."""
        grace_s = float(self.launch["grace_s"])
        if self.stopped:
            with contextlib.suppress(OSError, ValueError):
                grace_s = min(grace_s, float(read_own(self.directory / "hurry")))
        return grace_s

    def _is_to_pause(self, signo: int) -> bool:
        """Whether suspend or go on was wanted last: pending signals do not arrive in the order of their sending."""
        try:
            return read_own(self.directory / "paused") == "yes"
        except OSError:
            return signo == signal.SIGUSR1

    def _pause(self) -> None:
        """Suspend all descendants, including those that have left their group or were started in the meantime."""
        if self.cause:
            # They are stopping and cannot be suspended, but another job gets their GPUs.
            self.kill_at_s = min(self.kill_at_s, time.monotonic() + HURRY_S)
            return
        self.stopped = True
        self.turns.end()
        if self.memory.away:
            # It comes back just now, and is stopped then.
            return
        self._let_step_end()
        self.stand_still()

    def stand_still(self) -> None:
        """Stop all processes of the ranks."""
        self.signal_all(signal.SIGSTOP)
        for _ in range(100):
            moving = [pid for pid in self.processes() if (stat_fields(pid) or "X")[0] not in "TtZX"]
            if not moving:
                return
            for pid in moving:
                _kill(pid, signal.SIGSTOP)
            time.sleep(0.002)

    def _let_step_end(self) -> None:
        """Give a rank that looks for the request after every step a moment to end the present one."""
        folder = self.rank_folder()
        if len(self.ranks) > 1 or not (folder / "yields").exists():
            return
        until_s = time.monotonic() + _YIELD_S
        rank = next(iter(self.ranks))
        while time.monotonic() < until_s and (stat_fields(rank) or "X")[0] not in "ZX":
            if (folder / "rests").exists():
                return
            time.sleep(_YIELD_LOOK_S)

    def rank_folder(self) -> Path:
        """Where ranks may write files for the keeper."""
        shared = self.directory / "shared"
        return shared if shared.is_dir() else self.directory

    def _stop(self, cause: str, grace_s: float) -> None:
        """Ask all ranks to stop. The first cause counts."""
        if self.cause:
            return
        # The file comes first, so that the scheduler does not take stopping ranks for suspended ones.
        with contextlib.suppress(OSError):
            (self.directory / "stopping").touch()
        self.cause, self.stopped = cause, False
        if self.memory.away and not self.memory.is_wanted_back:
            # They cannot go on without it, and there may be no room for it.
            grace_s = 0.0
        elif self.memory.away:
            self.memory.come_back()
        self.kill_at_s = time.monotonic() + grace_s
        self.turns.end()
        # In this order, suspended ranks get the signal before they compute on.
        self.signal_all(signal.SIGTERM)
        self.signal_all(signal.SIGCONT)

    def _look_at_limit(self) -> None:
        """Read the time limit again, if it was changed."""
        with contextlib.suppress(OSError, ValueError):
            made_s = (self.directory / "launch.json").stat().st_mtime
            if made_s != self.launched_s:
                self.launched_s = made_s
                launch = json.loads(read_own(self.directory / "launch.json"))
                self.limit_s = float(launch.get("limit_s") or "inf")

    def _look_at_words(self, now_s: float) -> None:
        """Look whether the attempt was given up, or its gang has failed on another machine."""
        if now_s < self._words_at_s:
            return
        self._words_at_s = now_s + _POLL_S
        if (self.directory / "given-up").exists():
            if self.cause != "lost":
                self.problem, self.killed = self.problem or "its machine was given up", True
                self._stop("lost", 0.0)
                self.cause, self.kill_at_s = "lost", now_s
        elif not self.cause:
            soon = self.siblings.ending(read_own)
            if soon is None and (self.directory / "gang").exists():
                soon = True
            if soon is not None:
                # Suspended ranks may be on GPUs that now belong to another job.
                most_s = HURRY_S if self.stopped else _GANG_GRACE_S if soon else float("inf")
                self._stop("gang", min(float(self.launch["grace_s"]), most_s))

    def _look_after(self, now_s: float) -> None:
        """Check time limits, grace periods and failed gangs."""
        self._look_at_limit()
        self._look_at_words(now_s)
        if now_s >= self.sign_at_s:
            self.sign_at_s = now_s + _SIGN_EVERY_S
            self._leave_sign()
        self.turns.take(now_s)
        self.memory.step(now_s)
        if now_s >= self.kill_at_s:
            self.killed = True
            self._kill_all()
            self.kill_at_s = now_s + _KILL_EVERY_S
        elif not self.cause and self.ran_s >= self.limit_s:
            self._stop("limit", float(self.launch["grace_s"]))
        elif not self.cause and any(self.codes.values()) and len(self.codes) < len(self.ranks):
            grace_s = float(self.launch["grace_s"])
            # When a rank has saved its state and ended, the others get the time to save theirs.
            saved = all(code in (0, CHECKPOINTED) for code in self.codes.values())
            self._stop("gang", grace_s if saved else min(_GANG_GRACE_S, grace_s))
        self.siblings.tell([*self.codes.values()], self.cause)

    def signal_groups(self, signo: int) -> None:
        """Signal the group of every live rank."""
        for pid in self.ranks:
            if pid not in self.codes:
                _kill_group(pid, signo)

    def signal_all(self, signo: int) -> None:
        """Signal the group of every live rank; SIGSTOP and SIGCONT also go to processes that have left their group."""
        self.signal_groups(signo)
        if signo in (signal.SIGSTOP, signal.SIGCONT):
            for pid in self.processes():
                _kill(pid, signo)

    def _kill_all(self) -> None:
        self.signal_groups(signal.SIGKILL)
        for pid in self.processes():
            _kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reap processes that have ended, including those that ranks left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.ranks:
                code = os.waitstatus_to_exitcode(status)
                self.codes[pid] = code if code >= 0 else 128 - code

    def _clear(self) -> None:
        """Kill what the ranks have left behind: everything they ever started is in their group, or our descendant."""
        pause_s = 0.005
        while True:
            self._reap()
            left = {*self.processes(), *descendants(os.getpid())}
            if not left:
                return
            # They are stopped first, so that none can start another process while the others are killed.
            for signo in (signal.SIGSTOP, signal.SIGKILL):
                for pid in left:
                    _kill(pid, signo)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _KILL_EVERY_S)


class Turns:
    """Throttles ranks that may compute only a part of the time: they are stopped for the rest of every period.

    Suspending them overrides that, and a request to stop ends it. Ranks that throttle themselves, and say so, are not
    stopped: they pause between two steps, which is gentler.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._since_s = 0.0
        self._resting = False
        self._outsiders: list[list[int]] = []
        self._sought_s = -_OUTSIDERS_EVERY_S
        self.next_s = float("inf")
        self.part = self._told()
        self.begin()

    def look(self) -> None:
        """Read the throttle again."""
        part, before = self._told(), self.part
        if part != before:
            if self._resting:
                self._go_on(time.monotonic())
            self.part = part
            self.begin()

    def begin(self) -> None:
        """Take turns from now on, if the ranks are throttled and compute."""
        self.end()
        if self.part < 1.0 and not self._keeper.stopped and not self._keeper.cause:
            self._since_s = time.monotonic()
            self.next_s = self._since_s + self._turn_s()

    def end(self) -> None:
        """Stop taking turns. The caller has to continue ranks that rest."""
        self._resting, self.next_s = False, float("inf")

    def take(self, now_s: float) -> None:
        """Stop the ranks or let them go on, if it is time."""
        if now_s < self.next_s:
            return
        if self._resting:
            self._go_on(now_s)
            self.next_s = now_s + self._turn_s()
        elif self._are_eased():
            self._since_s = now_s
            self.next_s = now_s + _LOOK_AT_EASED_S
        else:
            self._signal(signal.SIGSTOP)
            self._resting = True
            # The rest depends on how long they really computed: a turn may end late.
            ran_s = min(now_s - self._since_s, 2.0 * self._turn_s())
            self.next_s = now_s + ran_s * (1.0 - self.part) / self.part

    def _go_on(self, now_s: float) -> None:
        self._signal(signal.SIGCONT)
        self._resting, self._since_s = False, now_s

    def _turn_s(self) -> float:
        """How long ranks compute in a period."""
        least_s = max(_PERIOD_S, _LEAST_TURN_S / self.part, _LEAST_TURN_S / (1.0 - self.part))
        return self.part * min(least_s, _LONGEST_PERIOD_S)

    def _signal(self, signo: int) -> None:
        """Signal all processes. Those that have left their group are looked for every `_OUTSIDERS_EVERY_S`."""
        keeper, now_s = self._keeper, time.monotonic()
        keeper.signal_groups(signo)
        if now_s >= self._sought_s + _OUTSIDERS_EVERY_S:
            self._sought_s = now_s
            groups = keeper.ranks.keys() - keeper.codes.keys()
            self._outsiders = [identity(pid) for pid in keeper.processes() if _group(pid) not in groups]

        for pid, start in self._outsiders:
            if started_at(pid) == start >= 0:
                _kill(pid, signo)

    def _told(self) -> float:
        """The throttle in the file; 1 if there is none or it makes no sense."""
        try:
            part = float(read_own(self._keeper.directory / "throttle"))
        except (OSError, ValueError):
            return 1.0
        return part if 0.0 < part < 1.0 else 1.0

    def _are_eased(self) -> bool:
        """Whether every live rank has said recently that it keeps to the throttle by itself."""
        folder, now_s = self._keeper.rank_folder(), time.time()
        for pid, rank in self._keeper.ranks.items():
            if pid in self._keeper.codes:
                continue
            try:
                said_s = (folder / f"eased-{rank}").stat().st_mtime
            except OSError:
                return False
            if abs(now_s - said_s) > _EASED_S:
                return False
        return True


def _kill(pid: int, signo: int) -> None:
    try:
        os.kill(pid, signo)
    except (ProcessLookupError, PermissionError):
        return


def _kill_group(pid: int, signo: int) -> None:
    try:
        os.killpg(pid, signo)
    except (ProcessLookupError, PermissionError):
        return


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def descendants(root: int) -> list[int]:
    """All live descendants of a process, nearest first."""
    found, level = list[int](), [root]
    below = _children if Path(f"/proc/{root}/task/{root}/children").exists() else _family()
    while level:
        level = [child for pid in level for child in below(pid)]
        found += level
    return [pid for pid in found if started_at(pid) >= 0]


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
    except OSError:
        return children
    return children


def _family() -> Callable[[int], list[int]]:
    """Children by parent, from one pass over all processes, for kernels that do not list children."""
    known: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields:
                known.setdefault(int(fields[1]), []).append(int(entry.name))
    return lambda pid: known.get(pid, [])


def _be_nobodys_child() -> None:
    """Go on in a process that is nobody's child, under the terms of an ordinary one.

    What starts keepers may be killed with all of its children, and may run under terms that are not meant for jobs.
    """
    pid = os.fork()
    if pid:
        os.write(1, str(pid).encode())
        os._exit(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0", encoding="ascii")
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def main() -> None:
    """Keep the attempt in the directory that is the last argument."""
    if NOBODYS_CHILD in sys.argv:
        os.setsid()
        _be_nobodys_child()
    Keeper(Path(sys.argv[-1])).run()
