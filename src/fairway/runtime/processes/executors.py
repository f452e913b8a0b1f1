"""Executors on this machine: a process for each user and GPU that hosts jobs (`fairway.gpu.executor`), and its warden.

A warden is a small process beside each executor. It starts the executor as the user of its jobs, starts it again when
it dies, and ends with it. It outlives the scheduler: a scheduler that starts again finds it by the lock that it holds.

    executor.json   what to start, written by the scheduler
    lock            held by the warden
    warden.json     the warden's process, and the GPU
    wanted          touched before a job comes, so that an executor that is about to end does not
    executor.log    what the executor writes
    run/            belongs to the user: the socket, and what the executor notes, such as when it had nothing to do
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fairway
from fairway.runtime.processes import keeper
from fairway.runtime.processes.ranks import RankTerms, problem_with, say, start_rank

ROOT = str(Path(fairway.__file__).resolve().parents[1])
_BOOT = (
    "import importlib, importlib.util as u, sys\n"
    "root, name = sys.argv[1:3]\n"
    "del sys.argv[1:3]\n"
    "about = u.spec_from_file_location('fairway', root + '/fairway/__init__.py',"
    " submodule_search_locations=[root + '/fairway'])\n"
    "sys.modules['fairway'] = made = u.module_from_spec(about)\n"
    "about.loader.exec_module(made)\n"
    "importlib.import_module(name).main()\n"
)
"""Runs a module of this Fairway in another Python, which need not have it installed and gets nothing else from here."""
_WARDEN = (
    "import sys; sys.path.append(sys.argv[1]); from fairway.runtime.processes import executors; executors.main()",
    ROOT,
)
IDLE_S = 60.0
_QUICK_S, _MOST_QUICK = 10.0, 5
"""An executor that ends within this time so many times in a row is not started again."""
_LOG_BYTES = 10 * 1024 * 1024
_OWN = ("FAIRWAY_", "SLURM_")
_started: list[subprocess.Popen[bytes]] = []


def seat_command(python: str, factory: str, arguments: Sequence[str]) -> list[str]:
    """The command of a job that an executor hosts."""
    return [python, "-c", _BOOT, ROOT, "fairway.gpu.seat", factory, *arguments]


def hosting(executors: Path, python: str, cwd: str, env: Mapping[str, str], account: str, gpu: int) -> dict[str, Any]:
    """The executor for a job. Jobs with the same user, GPU, Python, directory and module path share one."""
    device = env.get("CUDA_VISIBLE_DEVICES") or str(gpu)
    key = json.dumps([account, device, python, cwd, env.get("PYTHONPATH", "")])
    folder = executors / hashlib.sha256(key.encode()).hexdigest()[:16]
    kept = {name: value for name, value in env.items() if not name.startswith(_OWN)}
    kept |= {name: value for name, value in env.items() if name.startswith("FAIRWAY_EXECUTOR_")}
    return {
        "folder": str(folder),
        "argv": [python, "-c", _BOOT, ROOT, "fairway.gpu.executor", str(folder / "run")],
        "env": kept,
        "cwd": cwd,
        "account": account,
        "gpu": gpu,
    }


def socket_of(hosted_by: Mapping[str, Any]) -> str:
    """Where an executor listens."""
    return str(Path(hosted_by["folder"]) / "run" / "socket")


def ensure(hosted_by: Mapping[str, Any], umask: int = 0o022, open_files: int | None = None) -> None:
    """Have an executor started, unless there is one. Its folder exists. `OSError` if that fails."""
    folder = Path(hosted_by["folder"])
    run = folder / "run"
    if not run.exists():
        run.mkdir(mode=0o700)
        if hosted_by["account"]:
            owner = pwd.getpwnam(hosted_by["account"])
            os.chown(run, owner.pw_uid, owner.pw_gid)
    (folder / "wanted").touch(mode=0o644)
    with _lock(folder) as free:
        if not free:
            return
        keeper.write_over(folder / "executor.json", {**hosted_by, "umask": umask, "open_files": open_files})
    # Those of ours that have ended are reaped here. The others go on when we end.
    _started[:] = [one for one in _started if one.poll() is None]
    warden = subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", *_WARDEN, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )
    _started.append(warden)


def wardens(executors: Path) -> dict[int, set[int]]:
    """The pids of the wardens that live, by GPU."""
    found: dict[int, set[int]] = {}
    for path in executors.glob("*/warden.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            pid, start, gpu = json.loads(keeper.read_own(path))
            if keeper.started_at(pid) == start:
                found.setdefault(gpu, set()).add(pid)
    return found


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, if nobody else does. Says whether that is so."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


class Warden:
    """Keeps one executor up for as long as it has jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._idle_s = IDLE_S

    def run(self) -> None:
        """Stay until the executor ends by itself. A job that comes at that moment gets another one."""
        while self._stay():
            if not self._is_wanted():
                return

    def _stay(self) -> bool:
        """Keep the executor up. Whether it has ended by itself; the lock is free then."""
        with _lock(self.folder) as free:
            if not free:
                return False
            about = json.loads(keeper.read_own(self.folder / "executor.json"))
            self._idle_s = float(about["env"].get("FAIRWAY_EXECUTOR_IDLE_S", IDLE_S))
            keeper.write_over(self.folder / "warden.json", [*keeper.identity(os.getpid()), about["gpu"]])
            quick = 0
            while quick < _MOST_QUICK:
                began_s = time.monotonic()
                code = self._one(about)
                if code == 0:
                    return True
                quick = quick + 1 if time.monotonic() - began_s < _QUICK_S else 0
                time.sleep(0.1 * quick)
        return False

    def _one(self, about: Mapping[str, Any]) -> int:
        """Start the executor and wait for its end; its code."""
        user = pwd.getpwnam(about["account"]) if about["account"] else None
        ids: tuple[int, int, tuple[int, ...]] = (-1, -1, ())
        if user is not None:
            ids = user.pw_uid, user.pw_gid, tuple(os.getgrouplist(user.pw_name, user.pw_gid))
        log = os.open(self.folder / "executor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(log).st_size > _LOG_BYTES:
                os.ftruncate(log, 0)
            os.fchown(log, ids[0], ids[1])
            terms = RankTerms(about["cwd"], about["umask"], about["open_files"], None, *ids)
            pid = start_rank(about["argv"], about["env"], log, terms)
        except (OSError, ValueError) as error:
            os.write(log, f"{problem_with(error, about['argv'][0], about['cwd'])}\n".encode())
            return -1
        finally:
            os.close(log)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _is_wanted(self) -> bool:
        """Whether a job was announced after the executor made up its mind to end, however long it took to end."""
        try:
            decided_s = (self.folder / "run" / "idle").lstat().st_mtime
            return (self.folder / "wanted").stat().st_mtime > decided_s - self._idle_s
        except OSError:
            return False


def main() -> None:
    """Be the warden of the folder that is the last argument."""
    os.umask(0o077)
    try:
        Warden(Path(sys.argv[-1])).run()
    except (OSError, ValueError, KeyError) as error:
        say(f"the warden of {sys.argv[-1]} has failed: {error}")
