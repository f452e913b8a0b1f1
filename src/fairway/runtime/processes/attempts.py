"""The attempts of all jobs, each driven to its target. Nothing here depends on a machine.

A job may have a target (GPUs), which follows from the scheduler's state, and it may have a live attempt. `converge`
takes the next step from the attempt to the target: start, suspend, continue, or ask to stop. It is called when the
target changes, when an attempt ends, and after a restart of the scheduler. There is no other way to a target.

GPUs are taken by processes, not by decisions: an attempt that was asked to stop has its GPUs until it is gone. The next
job on them starts then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fairway.core.batch import Split
from fairway.runtime.processes.gpu_room import GpuRoom, Needs
from fairway.runtime.processes.live_attempt import AttemptStatus, Live, LiveAttempts
from fairway.runtime.processes.site import REFUSED, Handle, NodeChange, NodesJoined, Outcome, Over, Site

SEEN = "seen"
"""The source of reasons to block GPUs that the site itself sees: foreign processes, and GPUs that are out of order."""
_MOVES_S = 0.01
"""How often moves of memory are looked at while a job waits for them."""


class BlockedGpus:
    """GPUs on which no attempt is started now, by number with the reason: foreign processes compute there, the GPUs are
    out of order, their node does not answer, or it is drained. The scheduler's thread changes them; any thread may
    read."""

    def __init__(self) -> None:
        self.why: Mapping[int, str] = {}
        self._by_source: dict[str, Mapping[int, str]] = {}

    def set(self, why: Mapping[int, str], source: str = SEEN) -> None:
        """Block exactly these GPUs, as far as one source of reasons goes."""
        self._by_source = {**self._by_source, source: dict(why)}
        self.why = {gpu: text for told in self._by_source.values() for gpu, text in told.items()}

    def of(self, source: str) -> Mapping[int, str]:
        """The GPUs that are blocked for reasons of one source."""
        return self._by_source.get(source, {})

    @property
    def words(self) -> list[str]:
        """The same in words, GPUs with one reason together."""
        return blocked_words(self.why)

    def common(self, gpus: int) -> str:
        """That all GPUs of a cluster of this size are blocked for one reason, in words; empty if they are not."""
        reasons = set(self.why.values()) if len(self.why) == gpus else ()
        return self.words[0] if len(reasons) == 1 else ""

    def among(self, gpus: Iterable[int]) -> bool:
        """Whether any of these GPUs is blocked."""
        return bool(self.why) and any(gpu in self.why for gpu in gpus)


def blocked_words(why: Mapping[int, str]) -> list[str]:
    """Blocked GPUs in words, those with one reason together."""
    gpus: dict[str, list[int]] = {}
    for gpu, reason in sorted(why.items()):
        gpus.setdefault(reason, []).append(gpu)
    return [
        f"GPU {some[0]} is blocked: {reason}" if len(some) == 1 else f"{len(some)} GPUs are blocked: {reason}"
        for reason, some in gpus.items()
    ]


class AttemptTarget(NamedTuple):
    """The GPUs that a job should have. A guest of `host` (a job number) shares them, for a part of the time.

    `batch` is how it should work through its batch; None leaves that to the job.
    """

    gpus: tuple[int, ...]
    host: int = -1
    throttle: float = 1.0
    batch: Split | None = None


class LaunchOrder(NamedTuple):
    """What to start, and in which directory. `token` marks the processes of the attempt."""

    directory: Path
    token: str
    what: Mapping[str, Any]


class Wishes(Needs, Protocol):
    """The targets of jobs, and how to begin a new attempt."""

    def wanted(self) -> Iterable[int]:
        """The jobs that have a target."""
        ...

    def target(self, job: int) -> AttemptTarget | None:
        """The target of a job; None if it has no GPUs."""
        ...

    def adjusted(self) -> Mapping[int, tuple[float, Split | None]]:
        """The throttles and batches of all targets, without those that have all of the time and no batch."""
        ...

    def begin(self, job: int, gpus: tuple[int, ...]) -> LaunchOrder:
        """Make a new attempt. It is on disk before its processes are started."""
        ...


class Started(NamedTuple):
    """A job's processes compute: they were started, or go on (`resumed`), maybe on other GPUs than before."""

    job: int
    gpus: tuple[int, ...]
    resumed: bool


class Ended(NamedTuple):
    """An attempt is over."""

    job: int
    outcome: Outcome


class NoRoom(NamedTuple):
    """A job cannot run on its GPUs for a while: their memory is taken, and cannot be freed."""

    job: int
    why: str


Notice = Started | Ended | NoRoom | NodeChange | NodesJoined


class Attempts:
    """All attempts of a site. `anywhere`: GPUs are interchangeable, as virtual GPUs of one node are.

    `host_bytes` says how much host memory may hold the GPU memory of suspended jobs.
    """

    def __init__(
        self,
        site: Site,
        wishes: Wishes,
        blocked: BlockedGpus,
        *,
        anywhere: bool,
        host_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.live = LiveAttempts()
        self.room = GpuRoom(site, wishes, host_bytes)
        self._pauses = 0
        self._blocked = blocked
        self._site = site
        self._wishes = wishes
        self.anywhere = anywhere
        self._by_handle: dict[int, Live] = {}
        self._notices: list[Notice] = []
        self._just_ended: set[int] = set()
        self._planned: dict[int, int] = {}
        self._staying: dict[int, None] = {}
        self._slowed: dict[int, None] = {}

    def aim(self, off: Sequence[int], on: Sequence[int]) -> None:
        """Bring attempts to new targets: jobs in `off` give up their GPUs, then jobs in `on` start, move or go on."""
        for job in dict.fromkeys((*on, *self._relabel())):
            live = self.live.get(job)
            if live is not None and live.status == "running" and not live.adopted and not self._leaves(live):
                self._notices.append(Started(job, live.gpus, resumed=True))
        for job in (*off, *on):
            self.converge(job)

    def converge(self, job: int) -> None:
        """Take the next step towards the target of a job, if it can be taken now."""
        live, target = self.live.get(job), self._wishes.target(job)
        if target is None:
            self.room.forget(job)
        if live is None:
            # An end or a refusal is handled before the next try: otherwise it would be taken for the new attempt's.
            if target is not None and job not in self._just_ended and self._may_begin(job, target):
                self._start(job, target)
            return
        if live.status == "stopping":
            return
        if target is None:
            self._let_go(live)
        elif not self._is_at(live, target):
            self._stop(live)
        else:
            self._tell(live, target)
            if (live.status == "paused" or live.adopted) and self._may_begin(job, target):
                self.live.move(live, target.gpus)
                live.status, live.adopted = "running", False
                live.leaving = live.stuck = live.emptied = False
                live.handle.go_on(keep=self.room.may_keep(live, self.live))
                self._notices.append(Started(job, live.gpus, resumed=True))

    def stop(self, job: int, *, hurry: bool = False) -> None:
        """Ask the attempt of a job to stop, if there is one, whatever its target is. `hurry`: see `Handle`."""
        live = self.live.get(job)
        if live is not None:
            self._stop(live, hurry=hurry)

    def adopt(self, job: int, gpus: tuple[int, ...], handle: Handle, *, paused: bool = False) -> None:
        """Take over an attempt that an earlier scheduler started."""
        status: AttemptStatus = "stopping" if handle.stopping else "paused" if paused else "running"
        kept = handle.ready_bytes
        self._watch(Live(job, gpus, handle, status, adopted=True, throttle=handle.throttled, ready_bytes=kept))

    def wait(self, seconds: float) -> list[Notice]:
        """What has happened; waits for something, at most this many seconds."""
        if not self._notices:
            for job in [job for job in self.room.why if self._wishes.target(job) is None]:
                self.room.forget(job)
            moving = bool(self.room.why)
            for news in self._site.wait(min(seconds, _MOVES_S) if moving else seconds):
                if isinstance(news, Over):
                    live = self._by_handle.pop(id(news.handle))
                    del self.live[live.job]
                    self._just_ended.add(live.job)
                    self._staying.pop(live.job, None)
                    self._notices.append(Ended(live.job, news.outcome))
                else:
                    self._notices.append(news)
            if moving and self.room.look(self.live):
                self.settle()
        return self.noticed()

    def noticed(self) -> list[Notice]:
        """What we have done ourselves. Ends of processes are left for `wait`, after which a round is due."""
        notices, self._notices = self._notices, []
        self._just_ended.clear()
        return notices

    def settle(self) -> None:
        """GPUs have become free: jobs that wait for them start, move or go on."""
        computing = {job for job, live in self.live.items() if live.status != "paused" and not live.adopted}
        self.aim((), [job for job in self._wishes.wanted() if job not in computing])

    def tell(self, now_s: float) -> None:
        """Tell running attempts their present throttle, which also changes with their hosts, and their batch."""
        self.room.get_ready(now_s, self.live)
        adjusted = self._wishes.adjusted()
        for job in dict.fromkeys((*self._slowed, *adjusted)):
            live, (throttle, batch) = self.live.get(job), adjusted.get(job, (1.0, None))
            if live is None:
                self._slowed.pop(job, None)
            elif live.status == "running" and (live.throttle != throttle or batch not in (None, live.batch)):
                target = self._wishes.target(job)
                if target is not None and self._is_at(live, target):
                    self._tell(live, target)

    def staying(self) -> Iterable[int]:
        """The jobs that may be suspended in place and have a live attempt, and some more."""
        return tuple(self._staying)

    def note_plan(self, order: Mapping[int, int]) -> None:
        """In which order suspended jobs would go on, by job: 0 is the next one on its GPU. Executors are told."""
        for job in dict.fromkeys((*self._planned, *order)):
            live, place = self.live.get(job), order.get(job)
            if live is None or live.in_plan == place:
                continue
            if not self._wishes.share_a_process(job, job) or live.handle.tell_plan(place):
                live.in_plan = place
        self._planned = dict(order)

    def busy(self) -> dict[int, list[int]]:
        """The jobs whose processes are on each GPU, without suspended ones."""
        taken: dict[int, list[int]] = {}
        for live in self.live.values():
            if live.status != "paused":
                for gpu in live.gpus:
                    taken.setdefault(gpu, []).append(live.job)
        return taken

    def _is_at(self, live: Live, target: AttemptTarget) -> bool:
        return live.gpus == target.gpus or (self.anywhere and len(live.gpus) == len(target.gpus))

    def _relabel(self) -> list[int]:
        """Give running attempts the numbers of their targets' GPUs, where GPUs are interchangeable. Returns the jobs.

        An attempt keeps its numbers while others are on those GPUs. All changes are made at once: an attempt may be on
        GPUs that are another's target.
        """
        old: dict[int, tuple[int, ...]] = {}
        new: dict[int, AttemptTarget] = {}
        for job, live in self.live.items() if self.anywhere else ():
            target = self._wishes.target(job)
            if target is None or live.status != "running" or live.gpus == target.gpus:
                continue
            if self._is_at(live, target):
                old[job], new[job] = live.gpus, target
                self.live.move(live, target.gpus)
        while stuck := [job for job, target in new.items() if not self._are_free(job, target)]:
            for job in stuck:
                self.live.move(self.live[job], old[job])
                del new[job]
        return list(new)

    def _leaves(self, live: Live) -> bool:
        """Whether an attempt stops, is about to be taken off its GPUs, or about to be stopped for another number."""
        target = self._wishes.target(live.job)
        return live.status == "stopping" or target is None or not self._is_at(live, target)

    def _are_free(self, job: int, target: AttemptTarget) -> bool:
        """Whether no jobs are on the GPUs of a target, except for those that it shares them with."""
        if job not in self.live and self._blocked.among(target.gpus):
            return False
        others = [one for one in self.live.on(target.gpus) if one.status != "paused" and one.job != job]
        return all(self._share(job, one.job, target) for one in others)

    def _share(self, job: int, other: int, target: AttemptTarget) -> bool:
        """Whether two jobs share GPUs: one is the other's host, or both are guests of the same host.

        The target of a job whose attempt leaves is about its next attempt. The one that leaves shares with nobody.
        """
        if self._leaves(self.live[other]):
            return False
        theirs = self._wishes.target(other)
        host = -1 if theirs is None else theirs.host
        return host == job or (target.host >= 0 and target.host in (other, host))

    def _may_begin(self, job: int, target: AttemptTarget) -> bool:
        """Whether the GPUs of a target are free, with the memory that the job needs."""
        if not self._are_free(job, target):
            return False
        if not self.room.is_there(job, target.gpus, self.live):
            if job in self.room.full:
                self._notices.append(NoRoom(job, self.room.full.pop(job)))
            return False
        stuck = self.room.stuck(job, target.gpus, self.live)
        for other in stuck:
            self._stop(self.live[other])
        return not stuck

    def _start(self, job: int, target: AttemptTarget) -> None:
        try:
            launch = self._wishes.begin(job, target.gpus)
            handle = self._site.start(launch.directory, launch.what)
        except OSError as error:
            # A full disk or too many processes: the machine's fault, not the job's.
            self._notices.append(Ended(job, Outcome((), REFUSED, problem=f"cannot be started here: {error}")))
            self._just_ended.add(job)
            return
        live = Live(job, target.gpus, handle)
        self._watch(live)
        self._tell(live, target)
        self._notices.append(Started(job, target.gpus, resumed=False))

    def _tell(self, live: Live, target: AttemptTarget) -> None:
        """Tell an attempt its throttle and its batch. If that fails now, it is tried again later."""
        if live.throttle != target.throttle and live.handle.throttle(target.throttle):
            live.throttle = target.throttle
            self._note_slowed(live)
        if target.batch is not None and live.batch != target.batch and live.handle.want(target.batch, len(target.gpus)):
            live.batch = target.batch

    def _watch(self, live: Live) -> None:
        self.live.put(live)
        self._by_handle[id(live.handle)] = live
        if live.status == "paused" or self._wishes.stays(live.job):
            self._staying[live.job] = None
        self._note_slowed(live)

    def _note_slowed(self, live: Live) -> None:
        if live.throttle < 1:
            self._slowed[live.job] = None
        else:
            self._slowed.pop(live.job, None)

    def _let_go(self, live: Live) -> None:
        if live.status == "paused" and not live.adopted:
            return
        live.adopted = False
        if live.handle.stopping:
            # Its time limit has passed, or one of its ranks has failed. It keeps its GPUs until it has ended.
            live.status = "stopping"
        elif self._wishes.stays(live.job):
            self._pauses += 1
            live.held_bytes = self.room.held_bytes(live, self.live)
            live.status, live.paused = "paused", self._pauses
            live.handle.pause()
            self.settle()
        else:
            self._stop(live)

    def _stop(self, live: Live, *, hurry: bool = False) -> None:
        if live.status != "stopping":
            live.status = "stopping"
            live.handle.stop(hurry=hurry)
