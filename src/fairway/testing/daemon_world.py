"""Hours in the life of the real scheduler, simulated: one seed is one story of jobs, users and faults.

    python -m fairway.testing.daemon_world --seed 7          # one story; a failure ends with what went wrong
    python -m fairway.testing.daemon_world --seeds 1000      # many, with a line for each that fails

Jobs end, fail, hang and ignore requests to stop. Users submit, hold, suspend, requeue and cancel. Schedulers are killed
before, in and after every write, start and signal; keepers and ranks die; disks are full; clocks are set. After each
step the laws hold: nothing is lost, nothing runs twice, no GPU has two owners, what was acknowledged is so, every job
that waits has a reason, and what is on disk gives the same state again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import track

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import FairwayError
from fairway.core.state import State
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.jobs.estimates import RESTART_S
from fairway.runtime.jobs.records import JobRecord, JobState
from fairway.runtime.jobs.request import Dependency, DependencyKind, JobRequest
from fairway.runtime.journal.recovery import Recovered
from fairway.testing.simulated_site import (
    Behaviour,
    Killed,
    SimulatedAttempt,
    SimulatedJournal,
    SimulatedSite,
    SimulatedTime,
)

POLICIES = ("fifo", "las", "tiresias", "srtf", "capacity", "max_min_fairness", "gandiva", "fifo", "las")
STORY_S = 240.0
"""How long users and faults go on; afterwards everything is to come to rest."""
REST_S = 40_000.0
MOST_STEPS = 6000


class BrokenLawError(AssertionError):
    """A law does not hold."""


class DaemonWorld:
    """One story."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.folder = folder
        self.time = SimulatedTime()
        self.site = SimulatedSite(self.time, self.point)
        self.kill_in = -1
        self.kills = self.steps = 0
        self.full_until_s = 0.0
        self.calm = self.changed = False
        self.acknowledged: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.waiting: list[tuple[Future[Any], Callable[[Any], None]]] = []
        self.pairs: set[frozenset[int]] = set()
        self.keys = 0
        gpus, kinds = self.rng.choice((1, 2, 3, 4, 8)), self.rng.choice((1, 1, 1, 2))
        names = ("fast", "slow")[:kinds]
        self.cluster = Cluster.of(
            [Node(name, name, gpus) for name in names],
            [GpuType(name, 0, 0.0, 1.0 / (at + 1)) for at, name in enumerate(names)],
        )
        self.devices = None if self.rng.random() < 0.3 else [f"gpu-{number}" for number in range(gpus * kinds)]
        self.policy = self.rng.choice(POLICIES)
        self.min_run_s = self.rng.choice((0.0, 5.0))
        self.scheduler = self.made()

    # --- the story ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live the story to its end."""
        self.write()
        while self.time.monotonic() < 1000.0 + STORY_S and self.steps < MOST_STEPS:
            self.step()
        self.calm, self.full_until_s, self.site.refuses, self.kill_in = True, 0.0, False, -1
        self.end_all()
        deadline_s = self.time.monotonic() + REST_S
        while not self.at_rest():
            self.step()
            self.demand(self.time.monotonic() < deadline_s and self.steps < 3 * MOST_STEPS, "everything comes to rest")

    def write(self) -> None:
        """Plan what users do and what goes wrong."""
        rng, begin_s = self.rng, self.time.monotonic()
        for _ in range(rng.randint(3, 25)):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S * 0.7), self.submit)
        for _ in range(rng.randint(0, 20)):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.command)
        for _ in range(rng.randint(0, 9)):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.fault)

    def step(self) -> None:
        """Let the scheduler take one step; if it is killed, another one follows it."""
        self.steps += 1
        try:
            if not self.scheduler.loop.step():
                raise BrokenLawError("the scheduler has stopped by itself")
            self.hear()
        except Killed:
            self.restart()
        if self.changed:
            self.changed = False
            self.check()

    def point(self, name: str) -> None:
        """A place where the scheduler may be killed."""
        if self.kill_in >= 0:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Killed(name)

    def made(self) -> Scheduler:
        """A scheduler on what its predecessors have left."""
        journal = SimulatedJournal(self.folder / "journal.db", self.point, self.is_full)
        try:
            scheduler = Scheduler(
                self.folder,
                self.cluster,
                make_policy(self.policy),
                placement("packed"),
                devices=self.devices,
                min_run_s=self.min_run_s,
                policy_text=self.policy,
                journal=journal,
                site=self.site,
                time=self.time,
            )
            scheduler.listeners.append(self.note)
            scheduler.watchers.append(self.note)
            scheduler.begin()
        except BaseException:
            journal.close()
            raise
        return scheduler

    def note(self, *about: Any) -> None:
        """Something has happened or was decided."""
        self.changed = True

    def restart(self) -> None:
        """Start a scheduler after one was killed; it may be killed while it starts."""
        for _ in range(20):
            self.kills += 1
            with contextlib.suppress(Exception):
                self.scheduler.journal.close()
            self.waiting = []
            if self.rng.random() < 0.5:
                self.time.sleep(self.rng.uniform(0.0, 60.0))
                self.site.happen()
            # A scheduler that cannot write at its start does not start; its operator has to make room.
            self.full_until_s = 0.0
            if not self.calm and self.rng.random() < 0.3:
                self.kill_in = self.rng.randint(0, 30)
            try:
                self.scheduler, self.changed = self.made(), True
                return
            except Killed:
                continue
        raise BrokenLawError("no scheduler could start")

    def is_full(self) -> bool:
        """Whether there is no room on the disk."""
        return self.time.monotonic() < self.full_until_s

    # --- users -------------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Somebody submits a job, or an array of them."""
        rng, gpus = self.rng, self.cluster.gpu_count // len(self.cluster.nodes)
        self.keys += 1
        behaviour = Behaviour(
            work_s=rng.choice((0.0, 1.0, 10.0, 40.0, 120.0)) * rng.uniform(0.5, 1.5),
            code=rng.choice((0, 0, 0, 0, 3)),
            on_term=rng.choice(("saves", "saves", "dies", "ignores", "finishes")),
            stop_s=rng.choice((0.0, 0.5, 5.0, 100.0)),
            fails=rng.choice((0, 0, 0, 1, 3)),
            hangs=rng.random() < 0.05,
        )
        request = JobRequest(
            command=behaviour.command(),
            user=rng.choice(("ann", "bob", "cy")),
            gpus=rng.randint(1, gpus),
            preempt=rng.choice(("checkpoint", "suspend", "restart", "never")),
            priority=rng.choice((0, 0, 0, 1, -1)),
            retries=rng.choice((0, 0, 2)),
            grace_s=rng.choice((1.0, 10.0, 60.0)),
            hold=rng.random() < 0.1,
            limit_s=rng.choice((None, None, None, 5.0, 60.0)),
            depends=self.dependencies(),
            client_key=f"key-{self.keys}",
        )
        self.send_submission(request, again=0)

    def dependencies(self) -> tuple[Dependency, ...]:
        """Now and then a job waits for another one."""
        names = list(self.acknowledged.values())
        if not names or self.rng.random() < 0.8:
            return ()
        kind: DependencyKind = self.rng.choice(("afterok", "afterany", "afternotok"))
        return (Dependency(kind, self.rng.choice(names)),)

    def send_submission(self, request: JobRequest, again: int) -> None:
        """Submit, and submit again under the same key, as somebody does who has had no answer."""

        def acknowledged(records: list[JobRecord]) -> None:
            name = self.acknowledged.setdefault(str(request.client_key), records[0].id)
            self.demand(name == records[0].id, f"{request.client_key} is one job")

        self.ask(lambda now_s: self.scheduler.commands.take_in([request], now_s, array=False), acknowledged)
        if again < 2 and self.rng.random() < 0.3:
            self.site.at(
                self.time.monotonic() + self.rng.uniform(1.0, 60.0), partial(self.send_submission, request, again + 1)
            )

    def command(self) -> None:
        """Somebody does something to a job."""
        names = list(self.acknowledged.values())
        if not names:
            return
        name, commands = self.rng.choice(names), self.scheduler.commands
        verb = self.rng.choice(("cancel", "suspend", "hold", "release", "release", "requeue", "priority"))
        act = (
            commands.changing({"priority": self.rng.randint(-1, 2)}) if verb == "priority" else getattr(commands, verb)
        )

        def acknowledged(records: list[JobRecord]) -> None:
            if verb == "cancel":
                self.cancelled.add(name)

        self.ask(lambda now_s: commands.each(name, act, now_s), acknowledged)

    def end_all(self) -> None:
        """Release or cancel whatever would never end."""
        for record in self.scheduler.store:
            if not record.state.ended:
                behaviour = Behaviour.of(record.request.command)
                # Where jobs take turns, those that save nothing may never get to their end.
                saves = behaviour.on_term == "saves" and record.request.preempt != "restart"
                saves = saves and "never starts" not in self.scheduler.guard.outside.get(record.number, "")
                verb = "release" if saves and not behaviour.hangs else "cancel"
                self.ask(partial(self._each, record.id, verb), lambda records: None)
        # What was submitted meanwhile is to end, too.
        self.site.at(self.time.monotonic() + 50.0, self.end_all)

    def _each(self, name: str, verb: str, now_s: float) -> Any:
        return self.scheduler.commands.each(name, getattr(self.scheduler.commands, verb), now_s)

    def ask(self, command: Callable[[float], Any], acknowledged: Callable[[Any], None]) -> None:
        """Ask the scheduler for something, and hear of it when that is done."""
        self.waiting.append((self.scheduler.engine.ask(command), acknowledged))

    def hear(self) -> None:
        """Hear the answers that have come."""
        left: list[tuple[Future[Any], Callable[[Any], None]]] = []
        for future, acknowledged in self.waiting:
            if not future.done():
                left.append((future, acknowledged))
            elif isinstance(future.exception(), FairwayError):
                continue
            else:
                acknowledged(future.result())
        self.waiting = left

    # --- faults ------------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        """Something goes wrong."""
        if self.calm:
            return
        rng, alive, now_s = self.rng, self.site.alive(), self.time.monotonic()
        kind = rng.choice(("kill", "kill", "kill", "keeper", "rank", "full", "refuse", "date", "blocked"))
        if kind == "kill":
            self.kill_in = rng.randint(0, 40)
        elif kind == "keeper" and alive:
            self.site.kill_keeper(rng.choice(alive))
        elif kind == "rank" and alive:
            self.site.kill_rank(rng.choice(alive))
        elif kind == "full":
            self.full_until_s = now_s + rng.uniform(0.5, 20.0)
        elif kind == "refuse":
            self.site.refuses = True
            self.site.at(now_s + rng.uniform(1.0, 30.0), self.accept)
        elif kind == "date":
            self.time.set_date(rng.choice((-3600.0, -5.0, 5.0, 600.0)))
        elif kind == "blocked":
            gpu = rng.randrange(self.cluster.gpu_count)
            self.block({gpu: "somebody else computes there"})
            self.site.at(now_s + rng.uniform(1.0, 60.0), partial(self.block, {}))

    def accept(self) -> None:
        """Attempts can be started again."""
        self.site.refuses = False

    def block(self, blocked: dict[int, str]) -> None:
        """Others compute on some GPUs."""
        self.ask(lambda now_s: (self.scheduler.commands.block_gpus(blocked, now_s), None), lambda nothing: None)

    # --- laws --------------------------------------------------------------------------------------------------------

    def demand(self, holds: bool, law: str) -> None:
        """Say which law does not hold."""
        if not holds:
            raise BrokenLawError(f"{law} (step {self.steps}, {self.time.monotonic() - 1000.0:.3f} s)")

    def check(self) -> None:
        """All laws that hold after every step."""
        scheduler, alive = self.scheduler, self.site.alive()
        for key, name in self.acknowledged.items():
            self.demand(scheduler.store.get(name) is not None, f"job {name} ({key}) was acknowledged and is there")
        for name in self.cancelled:
            record = scheduler.store.get(name)
            self.demand(record is not None and record.state.ended, f"job {name} was cancelled and has ended")
        self._check_attempts(alive)
        self._check_states()
        if self.steps % 16 == 0:
            self._check_disk()

    def _check_attempts(self, alive: list[SimulatedAttempt]) -> None:
        jobs: set[str] = set()
        for attempt in alive:
            self.demand(attempt.job not in jobs, f"job {attempt.job} has one attempt")
            jobs.add(attempt.job)
        held: dict[int, int] = {}
        for live in self.scheduler.engine.attempts.live.values():
            record = self.scheduler.store[live.job]
            # A suspended job that is cancelled has to go on for a moment to stop.
            moment = live.status == "stopping" and record.state is JobState.CANCELLED
            for gpu in live.gpus if live.status != "paused" and not moment else ():
                other = held.setdefault(gpu, live.job)
                shared = other == live.job or self._share(other, live.job)
                self.demand(shared, f"GPU {gpu} has one owner, not {self.scheduler.store[other].id} and {record.id}")
            for one in record.request.depends if live.status == "running" else ():
                awaited = self.scheduler.store.get(one.job)
                self.demand(awaited is not None and awaited.state.ended, f"job {record.id} runs after job {one.job}")
        known = {self.scheduler.store[job].id for job in self.scheduler.engine.attempts.live}
        over = {one.job for path, one in self.site.attempts.items() if path in self.site.outcomes}
        self.demand(jobs <= known | over, f"the scheduler knows what runs: {jobs - known}")

    def _share(self, one: int, other: int) -> bool:
        """Whether two jobs share their GPUs: one is the other's host, or both are guests of the same, or were."""
        pair, hosts = frozenset((one, other)), set[int]()
        for job in pair:
            target = self.scheduler.jobs.target(job)
            hosts.add(job if target is None or target.host < 0 else target.host)
        if len(hosts) == 1:
            self.pairs.add(pair)
        return pair in self.pairs

    def _check_states(self) -> None:
        scheduler = self.scheduler
        reasons = scheduler.reasons.all()
        settled = scheduler.loop.decision is not None and not scheduler.loop.owes_round
        for record in scheduler.store:
            holds = record.number in scheduler.state.held_gpus
            if record.state.ended:
                self.demand(not holds, f"job {record.id} is {record.state} and holds nothing")
                self.demand(record.number not in scheduler.state.specs, f"job {record.id} has left the state")
            else:
                self.demand(record.number in scheduler.state.specs, f"job {record.id} is in the state")
            if record.state is JobState.RUNNING:
                self.demand(holds and scheduler.engine.lives(record.number), f"job {record.id} runs and has its GPUs")
            elif settled and record.state.waits and not holds:
                why = scheduler.guard.outside.get(record.number) or reasons.get(record.number)
                self.demand(bool(why), f"job {record.id} waits for a reason")

    def _check_disk(self) -> None:
        """What is on disk gives the same state again."""
        scheduler, new_state = self.scheduler, partial(State, self.cluster, min_run_s=self.min_run_s)
        facts = scheduler.journal.facts()
        again = Recovered(
            scheduler.journal, facts, self.cluster, self.devices, new_state, scheduler.clock.origin_s, RESTART_S
        )
        self.demand(not again.problem, f"the log is sound: {again.problem}")
        ours = {record.id: record.state for record in scheduler.store}
        self.demand({record.id: record.state for record in again.store} == ours, "the records on disk are these")
        self.demand(again.state.held_gpus == scheduler.state.held_gpus, "the log leads to the same GPUs")

    def at_rest(self) -> bool:
        """Whether all jobs have ended, and their processes."""
        return all(record.state.ended for record in self.scheduler.store) and not self.site.alive()


def live_through(seed: int) -> DaemonWorld:
    """One story, from beginning to end."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        world = DaemonWorld(seed, Path(folder))
        try:
            world.run()
        finally:
            world.scheduler.journal.close()
        return world


def main(arguments: list[str] | None = None) -> int:
    """Live through one story or many; the number of those that failed is the exit code, 100 at most."""
    parser = argparse.ArgumentParser(description="Simulate the life of the real scheduler under faults.")
    parser.add_argument("--seed", type=int, help="live through this one story, with the whole error")
    parser.add_argument("--seeds", type=int, default=1000, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        world = live_through(options.seed)
        told = f"{world.steps} steps, {world.kills} kills, {len(world.acknowledged)} jobs"
        print(f"seed {options.seed}: {told}; all laws held")
        return 0
    failed = steps = kills = 0
    for seed in track(range(options.first, options.first + options.seeds), description="stories", console=None):
        try:
            world = live_through(seed)
            steps, kills = steps + world.steps, kills + world.kills
        except (Exception, Killed) as error:
            failed += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"python -m fairway.testing.daemon_world --seed {seed}  # {type(error).__name__}: {error} ({last.name})"
            )
    print(f"{options.seeds} stories, {steps} steps, {kills} kills: {failed} failed")
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
