"""The ranks of an attempt: how its keeper starts them, and where what they write goes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HANDLED = (
    *(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    # A keeper of an earlier version ignores this one.
    signal.SIGURG,
)
"""The signals that a keeper blocks and waits for."""
CHECKPOINTED = 75
"""The exit code of a rank that has saved its state and wants to run again. `fairway.train` exits with it."""
_PR_SET_PDEATHSIG = 1
_CLONE3, _CLONE_INTO_CGROUP = 435, 0x200000000
_FAILED = 126
_PIECE_BYTES = 1 << 20
"""The most that is moved from a rank's pipe to its log at a time."""
_LINES, _COLUMNS = 40, 120
"""The size of the pseudo-terminal of a rank: its log is read on terminals of about this width."""
_DRAIN_S = 2.0
"""How long the last words of ranks that have ended may take to arrive in their logs."""


def say(text: str) -> None:
    """Write a line to the keeper's own log. It is only talk: if that fails, nothing else may."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


def prctl(option: int, value: int) -> None:
    """Set something about this process."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class RankTerms(NamedTuple):
    """On what terms a rank runs. `cgroup` is its control group. A `user` of -1 is our own."""

    cwd: str
    umask: int
    open_files: int | None
    cgroup: Path | None
    user: int = -1
    group: int = -1
    groups: tuple[int, ...] = ()


def start_rank(argv: Sequence[str], env: Mapping[str, str], out: int, terms: RankTerms) -> int:
    """Start a program in a session of its own. Its output goes to `out`. Returns its process.

    `OSError` if it cannot be started. This is not `subprocess.Popen`, which cannot start a process in a control group.
    """
    keeper = os.getpid()
    # The far end closes when the program begins. Before that it says what went wrong.
    near, far = os.pipe()
    pid = _forked(terms.cgroup)
    if not pid:
        try:
            _become(argv, env, out, terms, keeper)
        except OSError as error:
            os.write(far, str(error.errno).encode())
        except BaseException:
            os.write(far, str(errno.EINVAL).encode())
        finally:
            os._exit(_FAILED)
    os.close(far)
    with os.fdopen(near, "rb") as said:
        code = said.read()
    if code:
        os.waitpid(pid, 0)
        raise OSError(int(code), os.strerror(int(code)))
    return pid


def _forked(group: Path | None) -> int:
    """Fork, into a control group if there is one. Returns 0 in the new process.

    A process that joins a group later waits about 20 ms for the kernel. Old kernels, and containers that forbid the
    call, have only that way.
    """
    if group is None:
        return os.fork()
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        about = struct.pack("=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, folder)
        # Not `CDLL`: it releases the interpreter's lock meanwhile, and only one thread lives on in the new process.
        pid = int(ctypes.PyDLL(None).syscall(_CLONE3, ctypes.create_string_buffer(about, len(about)), len(about)))
    finally:
        os.close(folder)
    if pid < 0:
        pid = os.fork()
        if not pid:
            _join(group)
    return pid


def _join(group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text("0", encoding="ascii")
    except OSError as error:
        say(f"a rank cannot join {group}: {error.strerror}")
        os._exit(_FAILED)


def _become(argv: Sequence[str], env: Mapping[str, str], out: int, terms: RankTerms, keeper: int) -> None:
    """Turn the new process into the program."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if terms.user < 0:
        os.chdir(terms.cwd)
    os.umask(terms.umask)
    for signo in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores them.
        signal.signal(signo, signal.SIG_DFL)
    if terms.user >= 0:
        os.setgroups(terms.groups)
        os.setresgid(terms.group, terms.group, terms.group)
        os.setresuid(terms.user, terms.user, terms.user)
    _prepare(keeper, terms)
    os.execvpe(argv[0], list(argv), env)


def _prepare(keeper: int, terms: RankTerms) -> None:
    """What a rank does last, with its owner's rights. It enters `cwd` if that needs these rights."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        # The keeper was killed before it could be noticed, so no signal will come. Nothing has been done yet.
        os._exit(_FAILED)
    if terms.open_files is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        most = terms.open_files if hard == resource.RLIM_INFINITY else min(terms.open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if terms.user >= 0:
        try:
            os.chdir(terms.cwd)
        except OSError as error:
            os.write(2, f"fairway: the working directory {terms.cwd!r}: {error.strerror}\n".encode())
            os._exit(_FAILED)


def problem_with(error: Exception, program: str, cwd: str) -> str:
    """Why a program could not be started, for its owner."""
    if not Path(cwd).is_dir():
        return f"the working directory {cwd!r} does not exist"
    if isinstance(error, OSError) and error.strerror:
        if error.errno == errno.E2BIG:
            return f"{program!r}: its arguments and environment are too large for this machine"
        return f"{program!r}: {error.strerror}"
    return f"{program!r}: {type(error).__name__}: {error}"


class RankLogs:
    """Moves what ranks write from pipes or terminals to their logs, in a thread, and keeps each log within bounds.

    A log that has grown to `most_bytes` becomes the older piece, `NAME.1`, in place of the one before. If the disk is
    full, what ranks write is dropped: they should not fail because of it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._logs: dict[int, _Log] = {}
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    @contextlib.contextmanager
    def taking(self, log: Path, user: int, group: int, *, tty: bool = False) -> Iterator[int]:
        """What a rank writes to: a pipe or a pseudo-terminal. Its user owns it and the log; -1 is our own user."""
        end, beginning = _terminal() if tty else os.pipe()
        try:
            # Owned by its user, who may open /dev/stdout again.
            os.fchown(beginning, user, group)
            self._logs[end] = _Log(log, self._most_bytes, user, group)
            yield beginning
        finally:
            os.close(beginning)

    def start(self) -> None:
        """Move from now on."""
        self._thread.start()

    def finish(self) -> None:
        """The ranks have ended: wait until their last words have arrived."""
        self._thread.join(_DRAIN_S)

    def _run(self) -> None:
        poll = select.poll()
        for end in self._logs:
            poll.register(end, select.POLLIN)
        left = len(self._logs)
        while left:
            for end, _ in poll.poll():
                try:
                    piece = os.read(end, _PIECE_BYTES)
                except OSError:
                    # A terminal that no process has open any more.
                    piece = b""
                if piece:
                    self._logs[end].write(piece)
                else:
                    poll.unregister(end)
                    left -= 1


def _terminal() -> tuple[int, int]:
    """A pseudo-terminal to draw on: what is read from the first end is exactly what is written to the second.

    Ranks are in sessions that do not have it as their controlling terminal, so no signal ever comes from it.
    """
    # Only now: most keepers do not need it, and they should start quickly.
    import termios
    import tty

    end, beginning = os.openpty()
    tty.setraw(beginning)
    termios.tcsetwinsize(beginning, (_LINES, _COLUMNS))
    os.fchmod(beginning, 0o600)
    return end, beginning


class _Log:
    """The log of one rank."""

    def __init__(self, path: Path, most_bytes: int, user: int, group: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._owner = user, group
        self._fd = self._opened()
        self._size = os.fstat(self._fd).st_size

    def write(self, text: bytes) -> None:
        """Add to the log, as far as there is room for it."""
        while text:
            if self._size >= self._most_bytes:
                self._begin_another()
            part = text[: max(self._most_bytes - self._size, 1)]
            try:
                done = os.write(self._fd, part)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    say(f"{self._path} cannot be written: {error}")
                return
            self._size += done
            text = text[done:]

    def _begin_another(self) -> None:
        try:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            fd, self._fd = self._fd, self._opened()
            os.close(fd)
        except OSError as error:
            say(f"{self._path} is cut without keeping the old part: {error}")
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        self._size = 0

    def _opened(self) -> int:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchown(fd, *self._owner)
        return fd
