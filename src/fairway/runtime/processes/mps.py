"""MPS, the driver's server through which processes share a GPU at the same time, with limits for each of them.

Its control daemon belongs to one user and runs only while jobs share GPUs. The keeper of the first job that needs it
starts it, and the keeper of the last one ends it, so it does not depend on the scheduler. Each keeper has a shared lock
on a file; the one that gets the lock for itself is the last.

Needs only the standard library, because keepers use it. NVIDIA describes MPS in its document "Multi-Process Service".
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
_ANSWERS_S = 10.0
"""How long the daemon may take to start, to answer and to end."""
_PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MpsError(Exception):
    """MPS cannot be used. The text says why."""


def found() -> str | None:
    """The program that controls MPS; None if this machine has none."""
    return shutil.which(CONTROL, path=f"{os.environ.get('PATH', '')}:{_PATHS}")


def variables(folder: Path) -> dict[str, str]:
    """What the daemon and its clients have in their environment."""
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}


def client_variables(folder: Path, share: float, memory_bytes: int) -> dict[str, str]:
    """The environment of a client: its part of the GPU's threads, and its memory on the only GPU that it sees.

    The part is in whole percent, rounded up: less than a job asked for would break the promise.
    """
    percent = min(max(-int(-share * 1000 // 10), 1), 100)
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
    if memory_bytes:
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(memory_bytes >> 20, 1)}M"
    return {**variables(folder), **limits}


class MpsUse:
    """The use of the daemon of one folder by a keeper. A `user` of -1 is our own."""

    def __init__(self, program: str, folder: Path, user: int = -1, group: int = -1) -> None:
        self.program = program
        self.folder = folder
        self._owner = (user, group)
        self._users: int | None = None

    def begin(self) -> None:
        """Start the daemon if it does not run, and keep it running until `end`. `MpsError` if that is impossible."""
        try:
            with self._locked():
                if not self.answers():
                    self._start()
                self._users = os.open(self._lock("users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._users, fcntl.LOCK_SH)
        except OSError as error:
            raise MpsError(f"MPS cannot be started: {error}") from None

    def end(self) -> None:
        """The keeper needs it no more. If no other does, the daemon ends."""
        if self._users is None:
            return
        users, self._users = self._users, None
        with contextlib.suppress(OSError, MpsError), self._locked():
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            finally:
                os.close(users)
            self._tell("quit")

    def answers(self) -> bool:
        """Whether the daemon runs."""
        try:
            return self._tell("get_server_list")
        except MpsError:
            return False

    def _start(self) -> None:
        self.folder.parent.mkdir(mode=0o711, exist_ok=True)
        for path in (self.folder, self.folder / "pipe", self.folder / "log"):
            path.mkdir(mode=0o700, exist_ok=True)
            os.chown(path, *self._owner)
        with (self.folder / "start.log").open("wb") as out:
            done = self._run(("-d",), out=out)
        if done != 0 or not self.answers():
            said = (self.folder / "start.log").read_text(encoding="utf-8", errors="replace").strip()
            raise MpsError(f"MPS cannot be started: {said.splitlines()[-1] if said else f'exit code {done}'}")

    def _tell(self, command: str) -> bool:
        """Send a command to the daemon. Returns whether it took it."""
        return self._run((), command=command) == 0

    def _run(self, arguments: tuple[str, ...], *, command: str = "", out: object = subprocess.DEVNULL) -> int:
        user, group = self._owner
        as_whom = {} if user < 0 else {"user": user, "group": group, "extra_groups": ()}
        try:
            # Not a pipe for what it says: the daemon would keep it open. A keeper blocks signals; the daemon must not.
            return subprocess.run(  # type: ignore[call-overload, no-any-return]
                [self.program, *arguments],
                env={"PATH": _PATHS, **variables(self.folder)},
                cwd="/",
                input=f"{command}\n".encode(),
                stdout=out,
                stderr=out,
                timeout=_ANSWERS_S,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
                **as_whom,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MpsError(f"{CONTROL}: {error}") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one keeper at a time starts or ends the daemon."""
        self.folder.parent.mkdir(mode=0o711, exist_ok=True)
        lock = os.open(self._lock("turn"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _lock(self, name: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{name}")


def without_mps(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without what makes a process a client."""
    return {name: value for name, value in env.items() if not name.startswith("CUDA_MPS_")}
