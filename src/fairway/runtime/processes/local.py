"""The processes of this machine's jobs, driven towards what is wanted of each.

For every job there is a target (GPUs, or none) and there may be an attempt that lives. `converge` takes the next step
from the one to the other: start, suspend, let go on, or ask to stop. It is called when the target changes, when an
attempt ends, and after a restart of the scheduler, so there is one way to get anywhere.

GPUs are taken by processes, not by decisions: an attempt that was asked to stop has its GPUs until it is gone, and
whoever is to have them next starts then.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fairway.runtime.processes import attempts as processes
from fairway.runtime.processes.attempts import Outcome, Running

Status = Literal["running", "paused", "stopping"]


class Target(NamedTuple):
    """GPUs that a job is to have; as a guest of `host` (a job number) it shares them, for a part of the time."""

    gpus: tuple[int, ...]
    host: int = -1
    throttle: float = 1.0


@dataclass
class Live:
    """An attempt that lives. `adopted`: an earlier scheduler started it, and may have left it suspended or not."""

    job: int
    gpus: tuple[int, ...]
    running: Running
    token: str
    status: Status = "running"
    host: int = -1
    adopted: bool = False
    throttle: float = 1.0
    began_s: float = field(default_factory=time.monotonic)


class Started(NamedTuple):
    """A job's processes compute: they were started, or let go on."""

    job: int
    resumed: bool


class Ended(NamedTuple):
    """An attempt is over."""

    job: int
    outcome: Outcome


Notice = Started | Ended


class LocalProcesses:
    """All attempts on this machine.

    `launch(job, gpus)` prepares an attempt and returns its directory, its token and what to start; it has made sure
    that a restarted scheduler will know of it. `stays(job)` says whether a job is suspended in place rather than
    stopped, and `anywhere` whether GPUs are interchangeable (they are, where they are virtual). Nobody is started on
    GPUs that are `blocked`, by number with the reason: somebody else computes there, or they are out of order.
    """

    def __init__(
        self,
        launch: Callable[[int, tuple[int, ...]], tuple[Path, str, dict[str, Any]]],
        stays: Callable[[int], bool],
        *,
        anywhere: bool,
    ) -> None:
        self._launch = launch
        self._stays = stays
        self._anywhere = anywhere
        self.live: dict[int, Live] = {}
        self.targets: dict[int, Target] = {}
        self._notices: list[Notice] = []
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._by_fd: dict[int, Live] = {}
        self.blocked: Mapping[int, str] = {}

    def wake(self) -> None:
        """Make `wait` return now; may be called from any thread."""
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            return

    def set_targets(self, targets: Iterable[tuple[int, Target | None]]) -> None:
        """Change what is wanted of some jobs, and go towards it."""
        jobs = []
        for job, target in targets:
            jobs.append(job)
            if target is None:
                self.targets.pop(job, None)
            else:
                self.targets[job] = target
                self._relabel(job, target)
        # Whoever lets go comes first, so that its GPUs may be free for the others.
        for job in sorted(jobs, key=lambda job: job in self.targets):
            self.converge(job)

    def converge(self, job: int) -> None:
        """Take the next step towards what is wanted of a job, if it can be taken now."""
        live, target = self.live.get(job), self.targets.get(job)
        if live is None:
            if target is not None and self._are_free(job, target):
                self._start(job, target)
            return
        if live.status == "stopping":
            return
        if target is None:
            self._let_go(live)
        elif not self._is_at(live, target):
            self._stop(live)
        else:
            self._ease(live, target)
            if (live.status == "paused" or live.adopted) and self._are_free(job, target):
                live.gpus, live.host, live.status, live.adopted = target.gpus, target.host, "running", False
                live.running.go_on()
                self._notices.append(Started(job, resumed=True))

    def follow(self, job: int, host: int, throttle: float) -> None:
        """A guest that stays where it is has another host now, or may compute for another part of the time."""
        target, live = self.targets[job], self.live.get(job)
        self.targets[job] = target = target._replace(host=host, throttle=throttle)
        if live is not None and live.status == "running":
            live.host = host
            self._ease(live, target)

    def stop(self, job: int, *, hurry: bool = False) -> bool:
        """Ask an attempt to stop whatever is wanted of the job; False if there is none. `hurry`: see `Running`."""
        live = self.live.get(job)
        if live is None:
            return False
        self._stop(live, hurry=hurry)
        return True

    def adopt(self, job: int, gpus: tuple[int, ...], running: Running, token: str, *, paused: bool = False) -> None:
        """Take over an attempt that an earlier scheduler started."""
        status: Status = "stopping" if running.stopping else "paused" if paused else "running"
        self._watch(Live(job, gpus, running, token, status, adopted=True, throttle=running.throttled))

    def wait(self, seconds: float) -> list[Notice]:
        """What happened, after at most so many seconds."""
        if not self._notices:
            for fd, _ in self._poll.poll(max(0.0, min(seconds, 3600.0)) * 1000.0):
                if fd == self._wake_read:
                    self._drain()
                else:
                    self._end(self._by_fd[fd])
        notices, self._notices = self._notices, []
        return notices

    def noticed(self) -> list[Notice]:
        """What has happened by our own doing; ends of processes are left for `wait`, after which a round is due."""
        notices, self._notices = self._notices, []
        return notices

    def busy(self) -> dict[int, list[int]]:
        """Which jobs' processes sit on each GPU."""
        taken: dict[int, list[int]] = {}
        for live in self.live.values():
            if live.status != "paused":
                for gpu in live.gpus:
                    taken.setdefault(gpu, []).append(live.job)
        return taken

    def _is_at(self, live: Live, target: Target) -> bool:
        return live.gpus == target.gpus or (self._anywhere and len(live.gpus) == len(target.gpus))

    def is_blocked(self, job: int) -> bool:
        """Whether a job is to be on GPUs on which nobody is started now."""
        target = self.targets.get(job)
        return target is not None and any(gpu in self.blocked for gpu in target.gpus)

    def _relabel(self, job: int, target: Target) -> None:
        """An attempt on GPUs that are as good as the ones wanted is on those from now on."""
        live = self.live.get(job)
        if live is None or live.status != "running" or not self._is_at(live, target):
            return
        live.gpus, live.host = target.gpus, target.host
        if not live.adopted:
            self._notices.append(Started(job, resumed=True))

    def _are_free(self, job: int, target: Target) -> bool:
        """Whether nobody sits on the GPUs of a target but those with whom it is to share them."""
        if self.blocked and job not in self.live and any(gpu in self.blocked for gpu in target.gpus):
            return False
        taken = self.busy()
        for gpu in target.gpus:
            for other in taken.get(gpu, ()):
                if other != job and not self._share(job, other, target):
                    return False
        return True

    def _share(self, job: int, other: int, target: Target) -> bool:
        """Whether two jobs are to share GPUs: one is the other's host, or both are guests of the same."""
        theirs = self.targets.get(other)
        host = -1 if theirs is None else theirs.host
        return host == job or (target.host >= 0 and target.host in (other, host))

    def _start(self, job: int, target: Target) -> None:
        try:
            directory, token, launch = self._launch(job, target.gpus)
            running = processes.start(directory, launch)
        except OSError as error:
            # A full disk or too many processes: the machine's fault, not the job's.
            self._notices.append(Ended(job, Outcome((), "lost", problem=f"cannot be started here: {error}")))
            return
        live = Live(job, target.gpus, running, token, host=target.host)
        self._watch(live)
        self._ease(live, target)
        self._notices.append(Started(job, resumed=False))

    def _ease(self, live: Live, target: Target) -> None:
        """Let an attempt compute for as much of the time as it may; what cannot be said now is said again later."""
        if live.throttle != target.throttle and live.running.throttle(target.throttle):
            live.throttle = target.throttle

    def _watch(self, live: Live) -> None:
        self.live[live.job] = live
        self._by_fd[live.running.pidfd] = live
        self._poll.register(live.running.pidfd, select.POLLIN)

    def _let_go(self, live: Live) -> None:
        if live.status == "paused" and not live.adopted:
            return
        live.adopted = False
        if live.running.stopping:
            # Its time is over, or one of its ranks has failed: it is about to end, and has its GPUs until then.
            live.status = "stopping"
        elif self._stays(live.job):
            live.status = "paused"
            live.running.pause()
            self._retry_others(live.job)
        else:
            self._stop(live)

    def _stop(self, live: Live, *, hurry: bool = False) -> None:
        if live.status != "stopping":
            live.status = "stopping"
            live.running.stop(hurry=hurry)

    def _end(self, live: Live) -> None:
        """An attempt's keeper is gone: find out how it ended, and let those start who waited for its GPUs."""
        self._poll.unregister(live.running.pidfd)
        del self._by_fd[live.running.pidfd]
        del self.live[live.job]
        live.running.close()
        outcome = processes.outcome(live.running.directory)
        if outcome is None:
            processes.kill_strays(live.running.directory, live.token, just_now=True)
            outcome = processes.LOST
        self._notices.append(Ended(live.job, outcome))

    def settle(self) -> None:
        """Start whoever waits for GPUs that have become free."""
        self._retry_others(-1)

    def _retry_others(self, job: int) -> None:
        for other in list(self.targets):
            live = self.live.get(other)
            if other != job and (live is None or live.status == "paused" or live.adopted):
                self.converge(other)

    def _drain(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            return
