"""The engine of live jobs: a site and its users on one side, happenings and actions on the other.

`poll` waits until attempts end, jobs report or users give commands, and returns what happened. It changes nothing.
`enact` and `carry_out` do what was decided, once it is on disk. All instants are those of the scheduler's `Clock`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fairway.core.action import Action, Adjustment, Suspend
from fairway.core.batch import Split
from fairway.core.event import Event, Woken
from fairway.models.log_progress import LogProgress
from fairway.runtime.daemon.clock import Clock
from fairway.runtime.daemon.followed_logs import FollowedLogs
from fairway.runtime.daemon.gpu_sharing import GpuSharing
from fairway.runtime.jobs.commands import Inbox
from fairway.runtime.jobs.life import (
    NODE_LOST,
    Asked,
    AttemptEnded,
    AttemptStarted,
    ClusterGrew,
    Command,
    Converge,
    Happening,
    Instruction,
    Looked,
    NodesChanged,
    ReadOff,
    Reported,
    RoomLacked,
    Settle,
    Stop,
    TimeOfDaySet,
)
from fairway.runtime.jobs.live_jobs import LiveJobs
from fairway.runtime.jobs.observations import number
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.journal.job_folders import FACTS, RECORD
from fairway.runtime.processes import environment
from fairway.runtime.processes.attempts import Attempts, AttemptTarget, Ended, LaunchOrder, NoRoom, Notice, Started
from fairway.runtime.processes.gang import GangNode
from fairway.runtime.processes.site import Moment, NodeChange, NodesJoined, Outcome, Report, Site

REPORTS_EVERY_S = 0.5
MOST_LOOKED_AT = 1000
"""How many jobs are looked at each time. Where more run, they take turns."""
SETTLED_S = 30.0
"""What a job has on a GPU is what it needs once it has run this long."""
REST_S, MOST_REST_S = 0.01, 0.1
"""Limits on the time between rounds for commands. It is four times what a round takes, within these limits."""


class LiveEngine:
    """The jobs of a site. One thread calls `poll` and `enact`; any thread may call `ask`.

    `devices` names the GPUs for CUDA; None if they are virtual. `save` writes changed records down. `facts` are kept
    with every attempt. `log_bytes` says how large a log may grow. `sharing` is how jobs share GPUs.
    """

    def __init__(
        self,
        site: Site,
        jobs: LiveJobs,
        folder: Path,
        clock: Clock,
        *,
        devices: Sequence[str] | None,
        round_s: float,
        save: Callable[[], None],
        facts: Callable[[], dict[str, Any]],
        log_bytes: Callable[[], int],
        sharing: GpuSharing,
        host_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.clock = clock
        self.attempts = Attempts(site, self, jobs.blocked, anywhere=False, host_bytes=host_bytes)
        self.memory_seen: dict[int, int] = {}
        self._site = site
        self._jobs = jobs
        self.know_devices(devices)
        self._folder = folder
        self._round_s = round_s
        self._save = save
        self._facts = facts
        self._log_bytes = log_bytes
        self._sharing = sharing
        self._inbox = Inbox()
        self._put_off = False
        self._next_reports_s = 0.0
        self._not_looked_at: list[int] = []
        self._folders: dict[int, Path] = {}
        self._read_off: dict[int, tuple[int, LogProgress | None]] = {}
        self.logs = FollowedLogs(folder, clock)
        self._polled_s = 0.0
        self._left_s = math.nan
        self._rested_s = 0.0

    def know_devices(self, devices: Sequence[str] | None) -> None:
        """Set how CUDA names the GPUs of the cluster; None if they are virtual. Virtual GPUs of one node are alike."""
        self.devices = devices
        self.attempts.anywhere = devices is None and len(self._jobs.state.cluster.nodes) == 1

    def ask(self, command: Command) -> Future[Any]:
        """Run a command in the scheduler's thread. The answer comes when everything that it changed is on disk."""
        answer = self._inbox.put(command)
        self._site.wake()
        return answer

    def close(self) -> None:
        """Make `poll` return that there is nothing left to wait for."""
        self._inbox.close()
        self._site.wake()

    def refuse_all(self, error: Exception) -> None:
        """The scheduler has ended: answer all waiting commands with an error."""
        self._inbox.refuse_all(error)

    def poll(self, until_s: float) -> Sequence[Happening]:
        """Wait for something to happen, until `until_s` at the latest."""
        self._rest()
        self.attempts.tell(self.clock.now_s())
        until_s = self._latest_round_s(until_s)
        while not self._inbox.closed:
            now_s = self._now_s(until_s)
            new = [Asked(now_s, *one) for one in self._inbox.take()]
            # What others have just asked for comes before the next part of a long command, but not twice in a row.
            self._put_off = bool(new) and not self._put_off
            again = self._jobs.not_done(now_s, long=not self._put_off)
            asked: list[Happening] = [*self._set(now_s), *again, *new]
            if asked and not again:
                return asked
            # Long commands must not keep us from looking at attempts.
            wait_s = 0.0 if asked else min(until_s, self._jobs.timers.next_s, self._next_reports_s) - now_s
            notices = self.attempts.wait(wait_s)
            if wait_s > 0:
                # Only here: the instant of a round may have passed while earlier commands were written down.
                now_s = self._now_s(until_s)
            happened = [*asked, *self._set(now_s), *self._all_noticed(notices, now_s)]
            if now_s >= self._next_reports_s:
                self._next_reports_s = now_s + REPORTS_EVERY_S
                happened += self._looked(now_s)
            if now_s >= min(self._jobs.timers.next_s, until_s):
                happened.append(Woken(now_s))
            if happened:
                return happened
        return ()

    def look(self) -> list[Happening]:
        """What the site has to say at once, as which nodes are away."""
        notices, now_s = self.attempts.wait(0.0), self._now_s(math.inf)
        return [*self._set(now_s), *self._all_noticed(notices, now_s)]

    def owed_s(self, happened: Sequence[Happening], events: Sequence[Event]) -> float:
        """When a round is due after these happenings. Commands in quick succession share a round."""
        now_s = happened[-1].time_s
        asked = any(isinstance(one, Asked) for one in happened)
        if not asked:
            return now_s if events else math.inf
        owed_s = max(now_s, self._rested_s)
        if owed_s <= now_s:
            self._left_s = self.clock.now_s()
        return owed_s

    def enact(self, now_s: float, actions: Sequence[Action]) -> Sequence[Event]:
        """Bring attempts to their new targets. Those that can start at once do."""
        off: list[int] = []
        on: list[int] = []
        for action in actions:
            if isinstance(action, Suspend):
                lives = action.job in self.attempts.live
                self._jobs.preempted(self._jobs.store[action.job], now_s, lives=lives)
                off.append(action.job)
            elif not isinstance(action, Adjustment):
                on.append(action.job)
        self.attempts.aim(off, on)
        events: list[Event] = []
        for happening in self._all_noticed(self.attempts.noticed(), now_s):
            events += self._jobs.handle(happening)
        events += self._jobs.observations.regrouped(now_s)
        self._save()
        return events

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        """Carry out instructions. What they follow from is on disk."""
        for one in instructions:
            if isinstance(one, Stop):
                self.attempts.stop(one.job, hurry=one.hurry)
            elif isinstance(one, Converge):
                self.attempts.converge(one.job)
        if any(isinstance(one, Settle) for one in instructions):
            self.attempts.settle()

    def adopt(self) -> list[Happening]:
        """After a restart: find the attempts of all jobs again. Returns what has happened in the meantime."""
        now_s, happened = self.clock.now_s(), list[Happening]()
        for record in self._jobs.store:
            attempt = record.attempt
            if attempt is None or attempt.ended_s is not None:
                continue
            found = self._site.find(self._directory(record), attempt.token)
            if found is None:
                self._jobs.never_began(record, now_s)
            elif isinstance(found, Outcome):
                # The end counts from when it was, not from when it is found: no job is charged for the time between.
                ended_s = self._ended_s(found, now_s)
                at_s = max(ended_s, self._jobs.state.now_s)
                over = AttemptEnded(at_s, record.number, found, ended_s, found=True)
                happened += [*self._report(record, at_s, final=True), over]
            else:
                paused = record.state is JobState.SUSPENDED
                self.attempts.adopt(record.number, tuple(attempt.gpus), found, paused=paused)
                if record.state.ended or attempt.cause == NODE_LOST:
                    self.attempts.stop(record.number, hurry=True)
        # In the order in which they ended: what is learnt from an end applies to the jobs that still ran then.
        return sorted(happened, key=lambda one: one.time_s)

    def given_up(self) -> list[JobRecord]:
        """After a restart: jobs that were cancelled, although the journal does not say so (or not any more)."""
        open_ = [one for one in self._jobs.store if one.open_attempt is not None and not one.state.ended]
        # What is left of a gang that has lost a node is given up, too.
        whole = [one for one in open_ if one.attempts[-1].cause != NODE_LOST]
        return [one for one in whole if self._site.is_given_up(self._directory(one))]

    def converge(self) -> None:
        """After a restart: bring the attempts of all jobs to their targets."""
        held = self._jobs.state.held_gpus
        off = [job for job in self.attempts.live if job not in held]
        for job in off:
            if self._jobs.store[job].state is JobState.RUNNING:
                # It was taken off its GPUs, but the earlier scheduler ended before it could write that down.
                self._jobs.preempted(self._jobs.store[job], self.clock.now_s(), lives=True)
        self.attempts.aim(off, list(held))

    # --- what attempts ask -------------------------------------------------------------------------------------------

    def wanted(self) -> Sequence[int]:
        """The jobs that the state holds GPUs for."""
        return list(self._jobs.wanted())

    def target(self, job: int) -> AttemptTarget | None:
        """The target of a job; None if it has no GPUs."""
        return self._jobs.target(job)

    def adjusted(self) -> Mapping[int, tuple[float, Split | None]]:
        """The throttles and batches of all targets, without those that have all of the time and no batch."""
        return self._jobs.adjusted()

    def stays(self, job: int) -> bool:
        """Whether a job that loses its GPUs is suspended in place, rather than stopped."""
        return self._jobs.stays(job)

    def needs_bytes(self, job: int) -> int:
        """The memory that a job needs on each GPU: as its owner says, or as was seen; 0 if nobody knows."""
        record = self._jobs.store[job]
        settled = self.ran_s(record, self.clock.now_s()) >= SETTLED_S
        return record.request.memory_bytes or (self._seen_bytes(job) if settled else 0)

    def share_a_process(self, job: int, other: int) -> bool:
        """Whether one executor hosts both jobs, and sees to their memory itself."""
        one, two = self._jobs.store[job].request, self._jobs.store[other].request
        return bool(one.executor and two.executor) and one.user == two.user

    def saves(self, job: int) -> bool:
        """Whether a job that is stopped goes on from a checkpoint."""
        return self._jobs.store[job].progress.checkpoint is not None

    def begin(self, job: int, gpus: tuple[int, ...]) -> LaunchOrder:
        """Make a new attempt. It is on disk before its processes are started."""
        record, attempt = self._jobs.begin_attempt(job, gpus, self.clock.now_s())
        self._save()
        cluster = self._jobs.state.cluster
        kind = cluster.types[cluster.node_type[cluster.node_of_gpu[gpus[0]]]]
        about: dict[str, Any] = {"log_bytes": self._log_bytes(), "gpu_type": kind.name}
        about["mps"] = self._sharing.launch(record, kind.memory_bytes)
        launch = environment.launch_over(record, attempt, self._folder / record.id, self._places(gpus), **about)
        # If the journal is lost, a job that was ever started can be brought back from its folder alone.
        kept = {RECORD: record.plain(), FACTS: self._facts(), "token": attempt.token}
        if "parts" in launch:
            launch["parts"] = [{**part, **kept} for part in launch["parts"]]
        return LaunchOrder(self._directory(record), attempt.token, {**launch, **kept})

    def _places(self, gpus: tuple[int, ...]) -> list[GangNode]:
        """The machines that GPUs are on, in ascending order, with the numbers of the GPUs there.

        A machine with GPUs of several types is several nodes, one after the other.
        """
        cluster, found = self._jobs.state.cluster, dict[int, list[int]]()
        for gpu in sorted(gpus):
            first = cluster.node_of_gpu[gpu]
            while first and self._site.member(first - 1).name == self._site.member(first).name:
                first -= 1
            found.setdefault(first, []).append(gpu)
        names = self.devices
        return [
            GangNode(
                self._site.member(node),
                tuple(gpu - cluster.first_gpu[node] for gpu in own),
                None if names is None else [names[gpu] for gpu in own],
            )
            for node, own in found.items()
        ]

    def give_up(self, record: JobRecord) -> bool:
        """Ask the attempt of a job to stop at once, before that is in the journal. Whether its files say so."""
        if record.number not in self.attempts.live:
            return False
        self.attempts.stop(record.number, hurry=True)
        # One that has lost a node has such a mark for another reason.
        return record.attempts[-1].cause != NODE_LOST and self._site.is_given_up(self._directory(record))

    def discard(self, record: JobRecord) -> None:
        """Set the files of a job aside. It is about to be forgotten."""
        self._site.discard(self._folder / record.id)

    def sweep(self) -> None:
        """Delete the files of jobs that were forgotten."""
        self._site.sweep(self._folder)

    # --- what others ask ---------------------------------------------------------------------------------------------

    def home(self, job: int) -> tuple[int, ...]:
        """The GPUs that hold the state of a job that would lose it elsewhere; empty if all GPUs are alike, or if the
        state is lost with its node."""
        live = self.attempts.live.get(job)
        if self.attempts.anywhere or live is None or live.status == "stopping" or -1 in live.gpus:
            return ()
        down, cluster = self._jobs.state.occupancy.down, self._jobs.state.cluster
        if down and any(cluster.node_of_gpu[gpu] in down for gpu in live.gpus):
            return ()
        return live.gpus if live.status == "paused" or self.stays(job) else ()

    def homes(self) -> dict[int, tuple[int, ...]]:
        """The homes of all jobs that have one, by job number."""
        return {job: home for job in self.attempts.staying() if (home := self.home(job))}

    def _seen_bytes(self, job: int) -> int:
        live = self.attempts.live.get(job)
        own = (0, 0) if live is None else (live.held_bytes, live.handle.memory.bytes // len(live.gpus))
        return max(self.memory_seen.get(job, 0), *own)

    def note_memory(self, job: int, size: int) -> None:
        """Remember how much memory a job was seen to have on a GPU. Any thread may call this."""
        if size > self.memory_seen.get(job, 0):
            self.memory_seen[job] = size

    def note_log(self, job: int, attempt: int, found: LogProgress | None) -> None:
        """Take note of what the log of an attempt says now. Any thread may call this."""
        self._read_off[job] = attempt, found

    def lives(self, job: int) -> bool:
        """Whether a job has a live attempt."""
        return job in self.attempts.live

    def tell_limit(self, job: int, limit_s: float | None) -> None:
        """Give the live attempt of a job another time limit. `OSError` if that fails."""
        self.attempts.live[job].handle.set_limit(limit_s)

    def computes(self, record: JobRecord) -> bool:
        """Whether a job has a live attempt that is neither suspended nor about to end."""
        live = self.attempts.live.get(record.number)
        return live is not None and live.status == "running" and not record.suspended

    def ran_s(self, record: JobRecord, now_s: float) -> float:
        """How long a job has run by now, in seconds."""
        return record.ran_until_s(self.clock.date_s(now_s))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """After a round that commands asked for: compute when they may have the next one."""
        if not math.isnan(self._left_s):
            now_s = self.clock.now_s()
            self._rested_s = now_s + min(max(4.0 * (now_s - self._left_s), REST_S), MOST_REST_S)
            self._left_s = math.nan

    def _latest_round_s(self, until_s: float) -> float:
        """The latest of several missed rounds: after a pause, the others are skipped."""
        late_s = self.clock.now_s() - until_s
        return until_s + self._round_s * math.floor(late_s / self._round_s) if 0 < self._round_s <= late_s else until_s

    def _now_s(self, until_s: float) -> float:
        """The present instant, but at most `until_s`: a round that is due must not be missed."""
        self._polled_s = max(min(self.clock.now_s(), until_s), self._jobs.state.now_s, self._polled_s)
        return self._polled_s

    def _all_noticed(self, notices: Iterable[Notice], now_s: float) -> list[Happening]:
        """What notices mean, in their order. Nodes that change one after the other are one happening."""
        happened, changes = list[Happening](), dict[int, NodeChange]()
        for notice in notices:
            if changes and not (isinstance(notice, NodeChange) and notice.node not in changes):
                happened.append(NodesChanged(now_s, tuple(changes.values())))
                changes = {}
            if isinstance(notice, NodeChange):
                changes[notice.node] = notice
            else:
                happened += self._noticed(notice, now_s)
        return [*happened, NodesChanged(now_s, tuple(changes.values()))] if changes else happened

    def _noticed(self, notice: Started | Ended | NoRoom | NodesJoined, now_s: float) -> list[Happening]:
        if isinstance(notice, Started):
            return [AttemptStarted(now_s, *notice)]
        if isinstance(notice, NoRoom):
            return [RoomLacked(now_s, *notice)]
        if isinstance(notice, NodesJoined):
            return [ClusterGrew(now_s, notice)]
        over = AttemptEnded(now_s, notice.job, notice.outcome, self._ended_s(notice.outcome, now_s))
        last = self._last_words(self._jobs.store[notice.job], now_s)
        self._folders.pop(notice.job, None)
        return [*last, over]

    def _last_words(self, record: JobRecord, now_s: float) -> list[Happening]:
        """What a job has reported, or written into its log, before its attempt ended."""
        reports, job = self._report(record, now_s, final=True), record.number
        self._read_off.pop(job, None)
        progress = self.logs.last_words(record, self._jobs.observations.measured_since_s(job))
        return [*reports, *([] if progress is None else [ReadOff(now_s, job, len(record.attempts), progress)])]

    def _ended_s(self, outcome: Outcome, now_s: float) -> float:
        """The instant at which an attempt ended; at the latest now."""
        return now_s if outcome.ended is None else min(self.clock.instant_s(outcome.ended), now_s)

    def _set(self, now_s: float) -> list[Happening]:
        """Whether the time of day was set."""
        return [TimeOfDaySet(now_s, self.clock.shift_s)] if self.clock.look() else []

    def _looked(self, now_s: float) -> list[Happening]:
        """What the next jobs report. However many there are, this takes as long as for `MOST_LOOKED_AT`."""
        left = self._not_looked_at or list(self.attempts.live)
        jobs, self._not_looked_at = left[:MOST_LOOKED_AT], left[MOST_LOOKED_AT:]
        jobs = [job for job in jobs if job in self.attempts.live]
        reports = [one for job in jobs for one in self._report(self._jobs.store[job], now_s)]
        # Reports come first: a job that reports itself is not judged by its log.
        logs = [ReadOff(now_s, job, *self._read_off.pop(job)) for job in jobs if job in self._read_off]
        return [*reports, *logs, Looked(now_s, jobs)]

    def _report(self, record: JobRecord, now_s: float, *, final: bool = False) -> list[Happening]:
        folder = self._folders.get(record.number) or self._folders.setdefault(record.number, self._folder / record.id)
        report = self._site.reports(folder, record.progress.read_bytes, final=final)
        if not report.lines and report.read_bytes == record.progress.read_bytes:
            return []
        lines = [{**line, "time": self._date_of(line)} for line in report.lines]
        return [Reported(now_s, record.number, Report(lines, report.read_bytes))]

    def _date_of(self, line: Mapping[str, Any]) -> float | None:
        """When a line of a report was written, by our clock; None if it does not say."""
        date_s, uptime_s = number(line.get("time")), number(line.get("uptime"))
        if date_s is None and uptime_s is None:
            return None
        boot = "" if uptime_s is None else self.clock.source.boot
        return self.clock.date_s(self.clock.instant_s(Moment(date_s or 0.0, boot, uptime_s or 0.0)))

    def _directory(self, record: JobRecord) -> Path:
        """Where the files of the latest attempt are."""
        return self._folder / record.id / f"attempt-{record.attempts[-1].number}"
