"""One scheduler per state directory: its lock, its place to be reached at, its life from `up` to `down`."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairway.core.errors import FairwayError
from fairway.placement import placement as placement_named
from fairway.policies import make_policy
from fairway.runtime.keeper import started_at, write_over
from fairway.runtime.machine import Machine, found_machine
from fairway.runtime.nvml import Sitters
from fairway.runtime.scheduler import Scheduler
from fairway.runtime.settings import Settings
from fairway.runtime.watch import Watch

DEFAULT_POLICY = "tiresias"


@dataclass(frozen=True)
class Options:
    """How to run. `policy` None goes on with that of last time, `config` None with the state directory's own file."""

    folder: Path
    policy: str | None = None
    round_s: float | None = None
    gpus: str = "auto"
    placement: str = "packed"
    config: Path | None = None


class AlreadyUpError(FairwayError):
    """Another scheduler has this state directory."""


class Daemon:
    """A scheduler that has a state directory to itself."""

    def __init__(self, options: Options, machine: Machine | None = None) -> None:
        options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.options = options
        self._lock = _locked(options.folder / "lock")
        try:
            self.machine = machine or found_machine(options.gpus)
            self.scheduler = self._made_scheduler()
            self.settings = Settings(self.scheduler, options.config)
            self._watch = Watch(self.scheduler, self.settings, self._sitters())
        except BaseException:
            os.close(self._lock)
            raise
        self._thread: threading.Thread | None = None

    def _made_scheduler(self) -> Scheduler:
        options = self.options
        policy_text = options.policy or _last_policy(options.folder) or DEFAULT_POLICY
        return Scheduler(
            options.folder,
            self.machine.cluster,
            make_policy(policy_text),
            placement_named(options.placement),
            devices=self.machine.devices,
            round_s=options.round_s,
            policy_text=policy_text,
        )

    def _sitters(self) -> Sitters | None:
        """Who else is on our GPUs. They are looked at once before anything can be started there."""
        if self.machine.nvml is None or self.machine.devices is None:
            return None
        sitters = Sitters(self.machine.nvml, self.machine.devices, self.scheduler.engine.keepers)
        self.scheduler.engine.processes.blocked = sitters.look()
        return sitters

    @property
    def operators(self) -> tuple[str, ...]:
        """Who may control all jobs, beside root and whoever runs the scheduler."""
        return self.settings.config.operators

    @property
    def foreign(self) -> dict[int, str]:
        """GPUs that nobody is started on now, by number, with the reason: others compute there, or they are broken."""
        return dict(self.scheduler.engine.processes.blocked)

    def reload(self) -> str:
        """Read the configuration again; what was read. An error leaves the old one in force."""
        self.settings.reload()
        return str(self.settings.path)

    @property
    def socket(self) -> Path:
        """Where it listens by default."""
        return self.options.folder / "fairway.sock"

    def start(self, **about: Any) -> None:
        """Schedule in a thread, and leave word of who we are."""
        self._thread = self.scheduler.start()
        for line in self.machine.left_out:
            self._watch.tell(f"{line}; it is not used")
        for gpu, why in self.foreign.items():
            self._watch.tell(f"GPU {gpu} is left alone: {why}")
        self._watch.start()
        told = {"pid": os.getpid(), "start": started_at(os.getpid()), "socket": str(self.socket), **about}
        write_over(self.options.folder / "daemon.json", told)

    def close(self) -> None:
        """Stop scheduling. Jobs go on running; the next scheduler of this directory takes them over."""
        self._watch.close()
        self.scheduler.close()
        if self._thread is not None:
            self._thread.join()
        (self.options.folder / "daemon.json").unlink(missing_ok=True)
        os.close(self._lock)


def running_daemon(folder: Path) -> dict[str, Any] | None:
    """Who schedules in a state directory, if anybody does."""
    try:
        told: dict[str, Any] = json.loads((folder / "daemon.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if started_at(told["pid"]) == told["start"] else None


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise AlreadyUpError(f"a scheduler is already running in {path.parent}") from None
    return fd


def _last_policy(folder: Path) -> str | None:
    """The policy of last time, from the journal."""
    from fairway.runtime.journal import Journal

    if not (folder / "journal.db").exists():
        return None
    journal = Journal(folder / "journal.db")
    try:
        found: str | None = journal.facts().get("policy")
    finally:
        journal.close()
    return found
