"""The twins of what a live scheduler stands on: its time, its site, its journal's disk. All of them obey a seed.

The scheduler above them is the real one. A job's command says how its processes behave (`Behaviour`). Time passes only
when the scheduler waits, so hours go by in milliseconds.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fairway.core.batch import Split
from fairway.runtime.daemon.clock import JUMP_S
from fairway.runtime.journal.database import DiskFullError, Journal
from fairway.runtime.journal.job_folders import RECORD
from fairway.runtime.processes.site import LOST, GpuMemory, MemoryPlace, Moment, Outcome, Over, Report

SIGN_EVERY_S = 5.0
"""How often a keeper leaves a sign of life."""
CHECKPOINTED, TERMINATED, KILLED = 75, 143, 137
OnTerm = Literal["saves", "dies", "ignores", "finishes"]


class Killed(BaseException):
    """The scheduler was killed here with signal 9."""


class Behaviour(NamedTuple):
    """What a job's processes do: they compute for `work_s` seconds in all and leave with `code`.

    Asked to stop, they save their state and leave (`saves`), die at once, ignore it until they are killed, or finish
    with code 0. `fails` is how often they leave with code 1 before that. A job that `hangs` never ends by itself. Its
    memory on a GPU moves out in `move_s` seconds; never, if that is negative. `rest_bytes` of it stay until all is
    asked for, or for ever.
    """

    work_s: float
    code: int = 0
    on_term: OnTerm = "saves"
    stop_s: float = 0.5
    fails: int = 0
    hangs: bool = False
    reports: bool = False
    memory_bytes: int = 0
    move_s: float = 0.0
    rest_bytes: int = 0
    rest_stays: bool = False

    def command(self) -> tuple[str, ...]:
        """A command that stands for it."""
        return ("simulated", json.dumps(self._asdict()))

    @staticmethod
    def of(command: Sequence[str]) -> Behaviour:
        """What a command stands for."""
        return Behaviour(**json.loads(command[1]))


class SimulatedTime:
    """Time that passes when somebody waits. The time of day can be set apart from it.

    `monotonic` is the true time of the world, which goes on over reboots. `outage_s` is how much of it has passed while
    a scheduler was down, or could not act because it waited for its disk.
    """

    def __init__(self, date_s: float = 1.7e9) -> None:
        self.outage_s = 0.0
        self._ticks_s = 1000.0
        self._booted_s = 0.0
        self.boots = 1
        self._date_s = date_s
        self.dates_set = self.dates_seen = 0

    @property
    def boot(self) -> str:
        """The id of the machine's present boot."""
        return f"boot-{self.boots}"

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return self._ticks_s

    def uptime(self) -> float:
        """Seconds since the machine was booted."""
        return self._ticks_s - self._booted_s

    def moment(self) -> Moment:
        """Now, as a keeper writes it down."""
        return Moment(self._date_s, self.boot, self.uptime())

    def time(self) -> float:
        """The time of day."""
        return self._date_s

    def sleep(self, seconds: float, /) -> None:
        """Let time pass while the scheduler does not act."""
        self.outage_s += seconds
        self.go_by(seconds)

    def go_by(self, seconds: float) -> None:
        """Let time pass."""
        self._ticks_s += seconds
        self._date_s += seconds

    def reboot(self, off_s: float) -> None:
        """Switch the machine off for a while. What counts from its boot begins again."""
        self.sleep(off_s)
        self.boots += 1
        self._booted_s = self._ticks_s - 5.0

    def set_date(self, by_s: float) -> None:
        """Set the time of day forward or back."""
        self._date_s += by_s
        self.dates_set += 1


@dataclass
class SimulatedAttempt:
    """One start of a simulated job. It is its own handle. Instants are those of `SimulatedTime.monotonic`."""

    site: SimulatedSite
    job: str
    directory: Path
    gpus: tuple[int, ...]
    behaviour: Behaviour
    grace_s: float
    limit_s: float | None
    done_s: float
    pid: int
    since_s: float | None
    ran_s: float = 0.0
    stop_at_s: float = math.inf
    asked_s: float | None = None
    given_up: bool = False
    woken_to_stop: bool = False
    lost: bool = False
    ran_before_stop_s: float | None = None
    throttled: float = 1.0
    wanted: tuple[Split, int] | None = None
    words: list[str] = field(default_factory=list)
    out_at_s: float | None = None
    empty_at_s: float | None = None
    ready_bytes: int = 0
    stuck: bool = False
    says_need: bool = False
    killed_asleep: bool = False

    @property
    def stopping(self) -> bool:
        """Whether the ranks have been asked to stop."""
        return self.asked_s is not None

    @property
    def paused(self) -> bool:
        """Whether the ranks stand still."""
        return self.since_s is None

    @property
    def memory(self) -> MemoryPlace:
        """Where its memory is."""
        size, now_s = self.behaviour.memory_bytes * len(self.gpus), self.site.time.monotonic()
        if self.out_at_s is None:
            return MemoryPlace("gpu", size, problem="it cannot be moved" if self.stuck else "")
        if now_s < max(self.out_at_s, self.empty_at_s or 0.0):
            return MemoryPlace("leaving", size, ("moved",))
        if self.empty_at_s is None or self.behaviour.rest_stays:
            return MemoryPlace("host", size, ("moved",), problem="" if self.empty_at_s is None else "the rest stays")
        return MemoryPlace("host", size, ("moved", "driver"))

    def on_gpu_bytes(self) -> int:
        """What it has on each of its GPUs."""
        memory = self.memory
        if self.out_at_s is None or self.site.time.monotonic() < self.out_at_s:
            return self.behaviour.memory_bytes
        return 0 if "driver" in memory.ways else min(self.behaviour.rest_bytes, self.behaviour.memory_bytes)

    @property
    def can_free(self) -> bool:
        """Whether it stands still and could leave more of its GPUs."""
        could_empty = self.empty_at_s is None and self.behaviour.rest_bytes > 0
        return self.paused and (could_empty if self.out_at_s is not None else not self.stuck)

    def move_out(self, most_bytes: int, *, held_bytes: int = 0, everything: bool = False) -> bool:
        """Leave the GPU, if it can."""
        self.site.point("move out")
        size, now_s = self.behaviour.memory_bytes * len(self.gpus), self.site.time.monotonic()
        if self.out_at_s is not None:
            self.empty_at_s = now_s + self.behaviour.move_s if everything else self.empty_at_s
            return True
        self.stuck = self.behaviour.move_s < 0 or size > most_bytes
        if not self.stuck and self.paused:
            self.out_at_s, self.ready_bytes = now_s + self.behaviour.move_s, max(size, self.ready_bytes)
        return True

    def get_ready(self, most_bytes: int) -> None:
        """Pin host memory, if that is enough."""
        size = self.behaviour.memory_bytes * len(self.gpus)
        self.ready_bytes = size if size <= most_bytes else self.ready_bytes

    def tell_plan(self, place: int | None) -> bool:
        """No executor is here."""
        return True

    def stop(self, *, hurry: bool = False) -> None:
        """Ask the ranks to stop."""
        self.site.point("stop")
        self.given_up |= hurry
        if self.asked_s is None:
            self.asked_s, self.woken_to_stop = self.site.time.monotonic(), self.paused
            # One whose memory is out is killed.
            self.killed_asleep, self.out_at_s, self.empty_at_s = self.out_at_s is not None, None, None
            self.ran_before_stop_s = self.run_s()
            self._go(self.asked_s)
            stubborn = self.behaviour.on_term == "ignores" or self.behaviour.stop_s > self.grace_s
            self.stop_at_s = self.asked_s + (
                0.0 if self.killed_asleep else self.grace_s if stubborn else self.behaviour.stop_s
            )
            self.site.expect(self)

    def pause(self) -> None:
        """Suspend the ranks in place."""
        self.site.point("pause")
        if self.since_s is not None and self.asked_s is None:
            self._count(None)

    def go_on(self, *, keep: bool = True) -> None:
        """Let suspended ranks go on."""
        self.site.point("go on")
        if self.directory not in self.site.outcomes:
            if self.out_at_s is not None and not keep:
                self.ready_bytes = 0
            self.out_at_s, self.empty_at_s, self.stuck = None, None, False
            self.site.note_crowd(self)
            self._go(self.site.time.monotonic())
            self.site.expect(self)

    def throttle(self, part: float) -> bool:
        """Let the ranks compute for a part of the time."""
        if self.since_s is not None:
            self._count(self.site.time.monotonic())
        self.throttled = part
        self.site.expect(self)
        return True

    def want(self, batch: Split, gpus: int) -> bool:
        """Note what was asked for."""
        self.wanted = (batch, gpus)
        return True

    def set_limit(self, limit_s: float | None) -> None:
        """Hold the attempt to another time limit."""
        self.limit_s = limit_s
        self.site.expect(self)

    def run_s(self) -> float:
        """For how long its ranks have run by now. Those that have ended or are suspended do not."""
        return self.ran_s + self._passed_s()

    def end(self) -> None:
        """Its ranks do not run any more."""
        if self.since_s is not None:
            self._count(None)

    def computed_s(self) -> float:
        """For how long its job has computed by now."""
        return self.done_s + self.throttled * self._passed_s()

    def ends_s(self) -> float:
        """When it ends if nothing else happens."""
        if self.since_s is None:
            return math.inf
        left_s = math.inf if self.behaviour.hangs else max(self.behaviour.work_s - self.done_s, 0.0)
        return min(self.since_s + left_s / self.throttled, self.stop_at_s, self.limit_at_s())

    def limit_at_s(self) -> float:
        """When its time is over, if it runs until then."""
        if self.limit_s is None or self.since_s is None:
            return math.inf
        return self.since_s + max(self.limit_s - self.ran_s, 0.0)

    def _passed_s(self) -> float:
        return 0.0 if self.since_s is None else self.site.time.monotonic() - self.since_s

    def _count(self, since_s: float | None) -> None:
        """Count the time until now. It goes on from `since_s`."""
        self.done_s, self.ran_s, self.since_s = self.computed_s(), self.ran_s + self._passed_s(), since_s

    def _go(self, now_s: float) -> None:
        if self.since_s is None:
            self.since_s = now_s


class SimulatedSite:
    """A place where attempts run in simulated time. It outlives the schedulers that use it.

    `point` is called wherever a scheduler may be killed, and raises `Killed` to do so. `act` is what happens beside the
    scheduler: it is called at the instants of `at`, while the scheduler waits.
    """

    def __init__(self, time: SimulatedTime, point: Callable[[str], None]) -> None:
        self.time = time
        self.point = point
        self.attempts: dict[Path, SimulatedAttempt] = {}
        self.outcomes: dict[Path, Outcome] = {}
        self.never: set[Path] = set()
        self.saved_s: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.refuses: bool = False
        self.early: list[str] = []
        self.gpu_bytes: int | None = None
        self.crowded: list[str] = []
        self.discarded: set[str] = set()
        self._reports: dict[str, list[dict[str, Any]]] = {}
        self._told: set[Path] = set()
        self._ends: list[tuple[float, int, SimulatedAttempt]] = []
        self._script: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Let something happen at an instant (of `monotonic`), beside the scheduler."""
        self._count += 1
        heapq.heappush(self._script, (time_s, self._count, act))

    def start(self, directory: Path, launch: Mapping[str, Any]) -> SimulatedAttempt:
        """Start an attempt."""
        self.point("before a start")
        if self.refuses:
            raise OSError(28, "No space left on device")
        assert directory not in self.attempts, f"{directory} was started twice"
        record = launch[RECORD]
        job, behaviour = record["id"], Behaviour.of(launch["ranks"][0]["argv"])
        self._note_early(record)
        self._count += 1
        attempt = SimulatedAttempt(
            self,
            job,
            directory,
            tuple(record["attempts"][-1]["gpus"]),
            behaviour,
            launch["grace_s"],
            launch["limit_s"],
            self.saved_s.get(job, 0.0),
            1000 + self._count,
            self.time.monotonic(),
            says_need=bool(record.get("request", {}).get("memory_bytes")),
        )
        self.attempts[directory] = attempt
        self.note_crowd(attempt)
        self.expect(attempt)
        self.point("after a start")
        return attempt

    def gpu_memory(self, gpu: int) -> GpuMemory | None:
        """The memory of a GPU, and what no attempt has of it; None if GPUs have no memory in this story."""
        total = self.gpu_bytes
        return None if total is None else GpuMemory(total - sum(self._on(gpu).values()), total)

    def note_crowd(self, attempt: SimulatedAttempt) -> None:
        """Write down an attempt that begins though suspended ones that could move have the memory that it needs."""
        for gpu in attempt.gpus if self.gpu_bytes is not None else ():
            idle = [one for one in self.alive() if gpu in one.gpus and one.can_free and one is not attempt]
            # A rest counts only if it is known that it stands in the way.
            movable = [one for one in idle if one.out_at_s is None or attempt.says_need]
            memory = self.gpu_memory(gpu)
            if memory is not None and memory.free < 0 and movable:
                self.crowded.append(attempt.job)

    def _on(self, gpu: int) -> dict[Path, int]:
        return {one.directory: one.on_gpu_bytes() for one in self.alive() if gpu in one.gpus}

    def _note_early(self, record: Mapping[str, Any]) -> None:
        """Write down a job that is started before its time, unless the time was set in the middle of this step."""
        begin_s = record.get("request", {}).get("begin_s")
        if (
            self.time.dates_set == self.time.dates_seen
            and begin_s is not None
            and len(record["attempts"]) == 1
            and self.time.time() < begin_s - JUMP_S
        ):
            self.early.append(record["id"])

    def find(self, directory: Path, token: str) -> SimulatedAttempt | Outcome | None:
        """An attempt of an earlier scheduler."""
        if directory in self.outcomes:
            self._told.add(directory)
            return self.outcomes[directory]
        attempt = self.attempts.get(directory)
        if attempt is None:
            self.never.add(directory)
        return attempt

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that nobody wants its work any more."""
        attempt = self.attempts.get(directory)
        return attempt is not None and attempt.given_up

    def reports(self, folder: Path, read_bytes: int) -> Report:
        """What a job has reported since it was read last."""
        lines = self._reports.get(folder.name, [])
        return Report(lines[read_bytes:], len(lines))

    def discard(self, folder: Path) -> None:
        """Set the folder of a job aside."""
        self.point("discard")
        for path in [path for path in self.attempts if path.parent == folder]:
            assert path in self.outcomes, f"{path} runs"
            del self.attempts[path], self.outcomes[path]
        self._reports.pop(folder.name, None)
        self.discarded.add(folder.name)

    def sweep(self, jobs: Path) -> None:
        """Nothing of a folder that was set aside is left."""

    def wait(self, seconds: float) -> Sequence[Over]:
        """The attempts that have ended; lets time pass until one does, or something else happens."""
        self.point("wait")
        now_s = self.time.monotonic()
        left_s = min(seconds, self._next_s() - now_s)
        if left_s > 0:
            # Less than that would be lost in the last digit of the clock.
            self.time.go_by(max(left_s, 1e-6))
        self.happen()
        over = [path for path in self.outcomes if path not in self._told]
        self._told.update(over)
        return [Over(self.attempts[path], self.outcomes[path]) for path in over]

    def let_pass(self, seconds: float) -> None:
        """Let time pass while no scheduler runs. Everything happens when it is due."""
        end_s = self.time.monotonic() + seconds
        while self._next_s() < end_s:
            self.time.sleep(max(self._next_s() - self.time.monotonic(), 1e-6))
            self.happen()
        self.time.sleep(max(end_s - self.time.monotonic(), 0.0))
        self.happen()

    def wake(self) -> None:
        """Nobody else waits here."""

    def happen(self) -> None:
        """Let all happen that is due by now."""
        now_s = self.time.monotonic()
        while self._ends and self._ends[0][0] <= now_s:
            attempt = heapq.heappop(self._ends)[2]
            if attempt.directory not in self.outcomes and attempt.ends_s() <= now_s:
                self._end(attempt)
        while self._script and self._script[0][0] <= now_s:
            heapq.heappop(self._script)[2]()

    def expect(self, attempt: SimulatedAttempt) -> None:
        """Look at an attempt again when it may end."""
        ends_s = attempt.ends_s()
        if ends_s < math.inf:
            self._count += 1
            heapq.heappush(self._ends, (ends_s, self._count, attempt))

    def kill_keeper(self, attempt: SimulatedAttempt) -> None:
        """The keeper of an attempt is killed, and its ranks with it."""
        if attempt.directory not in self.outcomes:
            attempt.lost = True
            attempt.end()
            # What it had run when it left its last sign of life.
            ran_s = attempt.ran_s - attempt.ran_s % SIGN_EVERY_S
            self.outcomes[attempt.directory] = LOST._replace(ended=self.time.moment(), ran_s=ran_s)

    def kill_rank(self, attempt: SimulatedAttempt) -> None:
        """A rank of an attempt is killed by somebody."""
        if attempt.directory not in self.outcomes:
            self._over(attempt, (KILLED,), memory_kills=0)

    def alive(self) -> list[SimulatedAttempt]:
        """All attempts that have not ended."""
        return [one for path, one in self.attempts.items() if path not in self.outcomes]

    def _next_s(self) -> float:
        ends_s = self._ends[0][0] if self._ends else math.inf
        return min(ends_s, self._script[0][0] if self._script else math.inf)

    def _end(self, attempt: SimulatedAttempt) -> None:
        behaviour, done = attempt.behaviour, attempt.computed_s() >= attempt.behaviour.work_s - 1e-6
        if done and not behaviour.hangs and attempt.stop_at_s > self.time.monotonic():
            failed = self.failures.get(attempt.job, 0)
            if failed < behaviour.fails:
                self.failures[attempt.job] = failed + 1
                self._over(attempt, (1,))
            else:
                self._over(attempt, (behaviour.code,))
        elif attempt.limit_at_s() <= self.time.monotonic() < attempt.stop_at_s:
            self._over(attempt, (TERMINATED,), "limit")
        elif behaviour.on_term == "saves" and not attempt.killed_asleep:
            self.saved_s[attempt.job] = attempt.computed_s()
            self._reports.setdefault(attempt.job, []).append({"checkpoint": "/saved"})
            self._over(attempt, (CHECKPOINTED,), "request")
        elif behaviour.on_term == "finishes" and not attempt.killed_asleep:
            self._over(attempt, (0,), "request")
        else:
            killed = behaviour.on_term == "ignores" or attempt.killed_asleep
            self._over(attempt, (KILLED if killed else TERMINATED,), "request", killed=killed)

    def _over(
        self,
        attempt: SimulatedAttempt,
        codes: tuple[int, ...],
        cause: str = "",
        *,
        killed: bool = False,
        memory_kills: int = -1,
    ) -> None:
        asked_s, now_s = attempt.asked_s, self.time.monotonic()
        stop_s = None if asked_s is None else now_s - asked_s
        if asked_s is not None and codes != (0,) and not cause:
            cause = "request"
        attempt.end()
        about = (self.time.moment(), memory_kills, stop_s, attempt.ran_s)
        self.outcomes[attempt.directory] = Outcome(codes, cause, killed, "", *about)


class SimulatedJournal(Journal):
    """A real journal on a disk that can be full, and whose scheduler can be killed before, in and after every write."""

    def __init__(
        self,
        path: Path,
        point: Callable[[str], None],
        full: Callable[[], bool],
        no_files: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(path)
        self._point = point
        self._full = full
        self._no_files = no_files

    def refuse_if_full(self) -> None:
        """Refuse new jobs."""
        if self._full() or self._no_files():
            raise DiskFullError("no room left")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self._point("before a write")
        if self._full():
            raise DiskFullError("no room left")
        with super().transaction():
            yield
            self._point("in a write")
        self._point("after a write")
