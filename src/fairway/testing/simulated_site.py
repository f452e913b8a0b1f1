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
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fairway.core.batch import Split
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.runtime.daemon.clock import JUMP_S
from fairway.runtime.journal.database import DiskFullError, Journal
from fairway.runtime.journal.job_folders import RECORD
from fairway.runtime.processes.ranks import CHECKPOINTED
from fairway.runtime.processes.site import (
    LOST,
    GpuLoad,
    GpuMemory,
    Member,
    MemoryPlace,
    Moment,
    NodeChange,
    NodesJoined,
    NodeStatus,
    Outcome,
    Over,
    Report,
    Sight,
)
from fairway.runtime.processes.startable import Startable

SIGN_EVERY_S = 5.0
"""How often a keeper leaves a sign of life."""
TERMINATED, KILLED = 143, 137
OnTerm = Literal["saves", "dies", "ignores", "finishes"]


class Killed(BaseException):
    """The scheduler was killed here with signal 9."""


class Behaviour(NamedTuple):
    """What a job's processes do: they compute for `work_s` seconds in all and leave with `code`.

    Asked to stop, they save their state and leave (`saves`), die at once, ignore it until they are killed, or finish
    with code 0. `fails` is how often they leave with code 1 before that. A job that `hangs` never ends by itself. Its
    memory on a GPU moves out in `move_s` seconds; never, if that is negative. `rest_bytes` of it stay until all is
    asked for, or for ever. `speeds` says how much of its work it does per second on a GPU of each type (1 if a type is
    not named).
    """

    work_s: float
    code: int = 0
    on_term: OnTerm = "saves"
    stop_s: float = 0.5
    fails: int = 0
    hangs: bool = False
    memory_bytes: int = 0
    move_s: float = 0.0
    rest_bytes: int = 0
    rest_stays: bool = False
    speeds: Mapping[str, float] = MappingProxyType({})

    def command(self) -> tuple[str, ...]:
        """A command that stands for it."""
        return ("simulated", json.dumps({**self._asdict(), "speeds": dict(self.speeds)}))

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
    speed: float = 1.0
    broken: bool = False
    unheard: list[Callable[[], None]] = field(default_factory=list)
    deaf_s: float = 0.0
    _deaf_since_s: float = 0.0
    _over_s: float | None = None

    @property
    def nodes(self) -> set[int]:
        """The nodes on which it has ranks."""
        return self.site.nodes_of(self.gpus)

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
        if self._is_heard(self.stop) and self.asked_s is None:
            # Its ranks on nodes that answer may have heard that they are to stand still.
            self.asked_s, self.woken_to_stop = self.site.time.monotonic(), self.paused or self.pause in self.unheard
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
        if self._is_heard(self.pause) and self.since_s is not None and self.asked_s is None:
            self._count(None)

    def go_on(self, *, keep: bool = True) -> None:
        """Let suspended ranks go on."""
        self.site.point("go on")
        if self._is_heard(self.go_on) and self.directory not in self.site.outcomes:
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

    def _is_heard(self, word: Callable[[], None]) -> bool:
        """Whether its nodes hear a word now. If not, they hear it when they answer again."""
        heard = not self.site.is_frozen(self)
        if not heard:
            self._deaf_since_s = self._deaf_since_s if self.unheard else self.site.time.monotonic()
            self.unheard.append(word)
        return heard

    def forget_words(self) -> list[Callable[[], None]]:
        """The words that its nodes have not heard yet. They are not said again."""
        words, self.unheard = self.unheard, []
        if words:
            self.deaf_s += self.site.time.monotonic() - self._deaf_since_s
        return words

    def unknown_s(self) -> float:
        """For how long what it did was another thing than the scheduler could know, because a node did not answer."""
        now_s = self.site.time.monotonic()
        deaf_s = now_s - self._deaf_since_s if self.unheard else 0.0
        ended_s = 0.0 if self._over_s is None or self.site.is_told(self) else now_s - self._over_s
        return self.deaf_s + deaf_s + ended_s

    def run_s(self) -> float:
        """For how long its ranks have run by now. Those that have ended or are suspended do not."""
        return self.ran_s + self._passed_s()

    def end(self) -> None:
        """Its ranks do not run any more."""
        self._over_s = self.site.time.monotonic()
        if self.since_s is not None:
            self._count(None)

    def computed_s(self) -> float:
        """How much of its work its job has done by now."""
        return self.done_s + self.speed * self.throttled * self._passed_s()

    def ends_s(self) -> float:
        """When it ends if nothing else happens."""
        if self.since_s is None:
            return math.inf
        if self.broken:
            # Its ranks wait for those that are lost, until they are asked to stop.
            return self.stop_at_s
        left_s = math.inf if self.behaviour.hangs else max(self.behaviour.work_s - self.done_s, 0.0)
        return min(self.since_s + left_s / (self.speed * self.throttled), self.stop_at_s, self.limit_at_s())

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

    `cluster` has its nodes, if there are several. Each of them is up, frozen (its attempts go on, but nobody can talk
    to it) or lost. A lost node may be a zombie: what ran there runs on until the node comes back and is fenced.
    """

    def __init__(
        self,
        time: SimulatedTime,
        point: Callable[[str], None],
        cluster: Cluster | None = None,
        devices: list[str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.devices = devices
        self.status: dict[int, NodeStatus] = {}
        self.drained: set[str] = set()
        self.misplaced: list[str] = []
        self._zombies: dict[int, set[int]] = {}
        self._news: list[NodeChange | NodesJoined] = []
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
        self._untold: dict[Path, None] = {}
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
        first = launch["parts"][0] if launch.get("parts") else launch
        job, behaviour = record["id"], Behaviour.of(first["ranks"][0]["argv"])
        self._note_early(record)
        self._refuse_misplaced(record)
        self._count += 1
        attempt = SimulatedAttempt(
            self,
            job,
            directory,
            tuple(record["attempts"][-1]["gpus"]),
            behaviour,
            first["grace_s"],
            first["limit_s"],
            self.saved_s.get(job, 0.0),
            1000 + self._count,
            self.time.monotonic(),
            says_need=bool(record.get("request", {}).get("memory_bytes")),
        )
        attempt.speed = self.speed_of(attempt)
        self.attempts[directory] = attempt
        self.note_crowd(attempt)
        self.expect(attempt)
        self.point("after a start")
        return attempt

    def member(self, node: int) -> Member:
        """A machine."""
        return Member("simulated" if self.cluster is None else self.cluster.nodes[node].name)

    def largest(self) -> None:
        """Simulated machines have as many CPUs and as much memory as a job may ask for."""

    def start_problem(self, wish: Startable) -> str:
        """Every program can be started."""
        return ""

    def blocked(self) -> Mapping[int, str]:
        """No GPU is out of order."""
        return {}

    def gpu_loads(self) -> Mapping[int, GpuLoad]:
        """Nobody says."""
        return {}

    def lines(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def sight(self, handle: SimulatedAttempt) -> Sight:
        """What is seen of an attempt."""
        return Sight(handle.computed_s())

    def speed_of(self, attempt: SimulatedAttempt) -> float:
        """How much of its work an attempt does per second, unless it is throttled."""
        return 1.0

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
        """An attempt of an earlier scheduler. What has become of those on nodes that are away is told by `wait`."""
        attempt = self.attempts.get(directory)
        if attempt is not None:
            attempt.forget_words()
        if directory in self.outcomes:
            if attempt is not None and (attempt.broken or self.is_frozen(attempt)):
                self._untold[directory] = None
                return attempt
            self._untold.pop(directory, None)
            return self.outcomes[directory]
        if attempt is None:
            self.never.add(directory)
        return attempt

    def is_given_up(self, directory: Path) -> bool:
        """Whether an attempt was told that nobody wants its work any more."""
        attempt = self.attempts.get(directory)
        return attempt is not None and attempt.given_up

    def reports(self, folder: Path, read_bytes: int, *, final: bool = False) -> Report:
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

    def wait(self, seconds: float) -> Sequence[Over | NodeChange | NodesJoined]:
        """Nodes that have changed and attempts that have ended; lets time pass until something happens."""
        self.point("wait")
        now_s = self.time.monotonic()
        left_s = 0.0 if self._news else min(seconds, self._next_s() - now_s)
        if left_s > 0:
            # Less than that would be lost in the last digit of the clock.
            self.time.go_by(max(left_s, 1e-6))
        self.happen()
        over = [path for path in self._untold if not self.is_frozen(self.attempts[path])]
        for path in over:
            del self._untold[path]
        news, self._news = self._news, []
        return [*news, *(Over(self.attempts[path], self.outcomes[path]) for path in over)]

    def let_pass(self, seconds: float) -> None:
        """Let time pass while no scheduler runs. Everything happens when it is due."""
        end_s = self.time.monotonic() + seconds
        while self._next_s() < end_s:
            self.time.sleep(max(self._next_s() - self.time.monotonic(), 1e-6))
            self.happen()
        self.time.sleep(max(end_s - self.time.monotonic(), 0.0))
        self.happen()

    def is_told(self, attempt: SimulatedAttempt) -> bool:
        """Whether the scheduler has heard of the end of an attempt."""
        return attempt.directory in self.outcomes and attempt.directory not in self._untold

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
            self._note_over(attempt, LOST._replace(ended=self.time.moment(), ran_s=ran_s))

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

    # --- nodes -------------------------------------------------------------------------------------------------------

    def nodes_of(self, gpus: Sequence[int]) -> set[int]:
        """The nodes of some GPUs."""
        return set() if self.cluster is None else {self.cluster.node_of_gpu[gpu] for gpu in gpus}

    def is_frozen(self, attempt: SimulatedAttempt) -> bool:
        """Whether nobody can talk to one of its nodes."""
        return bool(self.status) and any(self.status.get(node) == "unreachable" for node in attempt.nodes)

    def greet(self) -> None:
        """Another scheduler has come: tell it of all nodes anew."""
        nodes = () if self.cluster is None else range(len(self.cluster.nodes))
        self._news = [NodeChange(node, self.status.get(node, "up")) for node in nodes]

    def freeze(self, node: int) -> None:
        """A node does not answer. What runs there goes on."""
        if node not in self.status:
            self._change(node, "unreachable")

    def lose(self, node: int, *, zombie: bool, late_s: float = 0.0) -> None:
        """A node is given up. The ends of its attempts come `late_s` later. What a zombie ran goes on."""
        if self.status.get(node) == "lost":
            return
        self._change(node, "lost")
        for attempt in self._alive_on(node):
            attempt.broken = True
            self.expect(attempt)
            if zombie:
                there = {gpu for gpu in attempt.gpus if self.nodes_of([gpu]) == {node}}
                self._zombies.setdefault(node, set()).update(there)
        self.at(self.time.monotonic() + late_s, self._give_up)

    def return_(self, node: int) -> None:
        """A node answers. If it was lost, it is fenced before it is up: nothing of ours runs there any more.

        What is left elsewhere of a gang that had ranks there is over, too.
        """
        if node not in self.status:
            return
        self._give_up()
        for attempt in self._alive_on(node):
            if attempt.broken:
                self.kill_keeper(attempt)
        self._zombies.pop(node, None)
        self._change(node, "up")
        for attempt in self.alive():
            for word in attempt.forget_words() if not self.is_frozen(attempt) else ():
                word()

    def join(self, node: Node, kind: GpuType) -> None:
        """Another node joins."""
        assert self.cluster is not None
        self.cluster = Cluster.of([*self.cluster.nodes, node], [*self.cluster.types, kind])
        if self.devices is not None:
            self.devices = [*self.devices, *(f"{node.name}-{gpu}" for gpu in range(node.gpus))]
        self._news.append(NodesJoined(self.cluster, self.devices))

    def _change(self, node: int, status: NodeStatus) -> None:
        self.status = {other: known for other, known in self.status.items() if other != node}
        if status != "up":
            self.status[node] = status
        self._news.append(NodeChange(node, status))

    def _alive_on(self, node: int) -> list[SimulatedAttempt]:
        return [one for one in self.alive() if node in one.nodes]

    def _give_up(self) -> None:
        """Attempts of which all nodes are lost are over."""
        lost = {node for node, status in self.status.items() if status == "lost"}
        for attempt in self.alive():
            if attempt.broken and attempt.nodes <= lost:
                self.kill_keeper(attempt)

    def _refuse_misplaced(self, record: Mapping[str, Any]) -> None:
        """Refuse to start an attempt on a node that is away. Write it down if the scheduler knows that, or has drained
        the node."""
        gpus = record["attempts"][-1]["gpus"]
        haunted = {gpu for there in self._zombies.values() for gpu in there}
        unknown = {news.node for news in self._news if isinstance(news, NodeChange)}
        for node in self.nodes_of(gpus):
            name = "" if self.cluster is None else self.cluster.nodes[node].name
            away = node in self.status or haunted.intersection(gpus)
            if (away and node not in unknown) or name in self.drained:
                self.misplaced.append(f"{record['id']} on {name}")
            if away:
                raise OSError(113, f"node {name} does not answer")

    def _end(self, attempt: SimulatedAttempt) -> None:
        if attempt.broken:
            self.kill_keeper(attempt)
            return
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
        self._note_over(attempt, Outcome(codes, cause, killed, "", *about))

    def _note_over(self, attempt: SimulatedAttempt, outcome: Outcome) -> None:
        self.outcomes[attempt.directory] = outcome
        self._untold[attempt.directory] = None


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
