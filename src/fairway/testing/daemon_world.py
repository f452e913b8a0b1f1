"""Hours in the life of the real scheduler, simulated: one seed is one story of jobs, users and faults.

    python -m fairway.testing.daemon_world --seed 7          # one story; a failure ends with what went wrong
    python -m fairway.testing.daemon_world --seeds 1000      # many, with a line for each that fails
    python -m fairway.testing.daemon_world --seeds 1000 --nodes  # the same on several nodes, which fail as well

Jobs end, fail, hang and ignore requests to stop. Users submit jobs and arrays, hold, suspend, requeue and cancel them.
Operators change the policy and the configuration. Schedulers are killed before, in and after every write, start and
signal; keepers and ranks die; the machine is switched off; disks are full; the time of day is set. Where there are
several nodes, they freeze, are lost, come back as zombies, join and are drained. After each step the laws of
`daemon_laws` hold.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import track

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import FairwayError
from fairway.models.log_progress import LogProgress
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import Settings
from fairway.testing.daemon_laws import BrokenLawError, Laws
from fairway.testing.simulated_site import Killed, SimulatedJournal, SimulatedSite, SimulatedTime
from fairway.testing.simulated_users import POLICIES, Users

STORY_S = 120.0
"""How long users and faults go on; afterwards everything is to come to rest."""
REST_S = 40_000.0
MOST_STEPS = 6000
FAULTS = ("kill", "kill", "kill", "keeper", "rank", "full", "refuse", "date", "date", "date", "reboot", "blocked")
NODE_FAULTS = ("freeze", "freeze", "lose", "lose", "lose", "join", "drain", "drain")
MOST_NODES = 6
TYPES = {name: GpuType(name, 0, 0.0, 1.0 / (at + 1)) for at, name in enumerate(("fast", "slow", "other"))}
JUMPS_S = (-3.2e8, -3600.0, -3600.0, -5.0, 5.0, 600.0, 3600.0, 3600.0, 3.2e8)
"""By how much the time of day is set, about."""


class DaemonWorld:
    """One story."""

    def __init__(self, seed: int, folder: Path, *, nodes: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.folder = folder
        self.time = SimulatedTime()
        self.kill_in = -1
        self.kills = self.steps = 0
        self.full_until_s = 0.0
        self.calm = self.changed = False
        self.waiting: list[tuple[Future[Any], Callable[[Any], None]]] = []
        gpus, kinds = self.rng.choice((1, 1, 2, 2, 3, 4, 8)), self.rng.choice((1, 1, 1, 2))
        names = ("fast", "slow")[:kinds]
        cluster = Cluster.of([Node(name, name, gpus) for name in names], [TYPES[name] for name in names])
        virtual = self.rng.random() < 0.3
        # From a source of its own, so that the other stories are as they were before there were several nodes.
        self.weather = random.Random(f"nodes of {seed}")
        if nodes:
            cluster = several_nodes(self.weather, names)
        devices = None if virtual else [f"gpu-{number}" for number in range(cluster.gpu_count)]
        self.one_node = None if nodes else cluster
        self.site = SimulatedSite(self.time, self.point, cluster if nodes else None, devices)
        self.logs = random.Random(f"logs of {seed}")
        memory = random.Random(f"memory {seed}")
        if devices is not None and memory.random() < 0.5:
            self.site.gpu_bytes = 16 << 30
        self.policy = self.rng.choice(POLICIES)
        self.min_run_s = self.rng.choice((0.0, None))
        self.recent = self.rng.choice((0, 1, 3, 1000))
        self.piece = self.rng.choice((1, 2, 3, 1000))
        self.users = Users(self)
        self.laws = Laws(self.site, self.users.promised)
        if self.rng.random() < 0.2:
            self.users.write_config(self.users.configuration())
        self.settings, self.scheduler = self.made()

    @property
    def cluster(self) -> Cluster:
        """The machines that are there now."""
        return self.one_node or self.site.cluster or self.scheduler.cluster

    # --- the story ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live the story to its end."""
        self.write()
        while self.time.monotonic() < 1000.0 + STORY_S and self.steps < MOST_STEPS:
            self.step()
        self.calm, self.full_until_s, self.site.refuses, self.kill_in = True, 0.0, False, -1
        for node in list(self.site.status):
            self.site.return_(node)
        for node_of_site in self.cluster.nodes if self.one_node is None else ():
            self.users.undrain(node_of_site.name)
        self.users.write_config("")
        self.settings.reload(self.scheduler)
        self.users.end_all()
        deadline_s = self.time.monotonic() + REST_S
        while not self.at_rest():
            self.step()
            self.demand(self.time.monotonic() < deadline_s and self.steps < 3 * MOST_STEPS, "everything comes to rest")
        # A date that was set in the middle of the last step is seen by the next one.
        self.step()
        self.check(disk=True)

    def write(self) -> None:
        """Plan what users do and what goes wrong."""
        rng, begin_s = self.rng, self.time.monotonic()
        for _ in range(rng.randint(3, 14)):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S * 0.5), self.users.submit)
        for _ in range(rng.randint(0, 20)):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.users.command)
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.users.change_policy)
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.users.configure)
        for _ in range(rng.randint(0, 12)):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.fault)
        for _ in range(rng.choice((0, 0, 1, 4))):
            self.site.at(begin_s + rng.uniform(0.0, STORY_S), self.users.let_go)

        for _ in range(self.logs.choice((0, 0, 5, 40))):
            self.site.at(begin_s + self.logs.uniform(0.0, STORY_S), self.log_says)
        for _ in range(self.weather.randint(1, 8) if self.one_node is None else 0):
            self.site.at(begin_s + self.weather.uniform(0.0, STORY_S), self.node_fault)

    def log_says(self) -> None:
        """The log of a job says something about its progress, which may be nonsense."""
        rng, lives = self.logs, list(self.scheduler.engine.attempts.live)
        if not lives:
            return
        job = rng.choice(lives)
        total = rng.choice((1.0, 10.0, 10.0, 1000.0, 1000.0, 1e12))
        told = rng.choice(((0.0, 1e-9), (total / 2, 1.0), (total * rng.random(), math.nan), (total, 1e12)))
        about = rng.choice(("tqdm", "Keras")), rng.choice(("step", "epoch"))
        found = LogProgress(*about, told[0], total, told[1], rng.choice((0.5, math.nan, -1e30)))
        attempt = len(self.scheduler.store[job].attempts) - (rng.random() < 0.1)
        self.scheduler.engine.note_log(job, attempt, None if rng.random() < 0.3 else found)

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
            self.check(disk=self.steps % 16 == 0)

    def check(self, *, disk: bool) -> None:
        """Demand all laws; those about the disk if asked for."""
        try:
            self.laws.check(self.scheduler, self.settings, disk=disk)
        except BrokenLawError as error:
            raise self.broken(str(error)) from None

    def demand(self, holds: bool, law: str) -> None:
        """Say which law does not hold."""
        if not holds:
            raise self.broken(law)

    def broken(self, law: str) -> BrokenLawError:
        """The error about a law, with the instant at which it was broken."""
        return BrokenLawError(f"{law} (step {self.steps}, {self.time.monotonic() - 1000.0:.3f} s)")

    def point(self, name: str) -> None:
        """A place where the scheduler may be killed."""
        if self.kill_in >= 0:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Killed(name)

    def made(self) -> tuple[Settings, Scheduler]:
        """A scheduler on what its predecessors have left, as the daemon makes it."""
        settings = Settings(self.folder)
        journal = SimulatedJournal(self.folder / "journal.db", self.point, self.is_full, self.has_no_files)
        promised = self.users.promised
        self.site.greet()
        try:
            policy = str(journal.facts(("policy",)).get("policy", self.policy))
            self.demand(not promised.policies or policy in promised.policies, f"{policy} was asked for")
            promised.policies[:] = [policy]
            scheduler = Scheduler(
                self.folder,
                self.cluster,
                make_policy(policy),
                placement("packed"),
                devices=self.site.devices,
                min_run_s=self.min_run_s,
                policy_text=policy,
                terms=settings,
                journal=journal,
                site=self.site,
                time=self.time,
                recent=self.recent,
                piece=self.piece,
            )
            scheduler.listeners.append(self.note)
            scheduler.watchers.append(lambda *about: self.laws.note_pairs(scheduler))
            scheduler.watchers.append(self.note)
            scheduler.writer.on_full.insert(0, self.meanwhile)
            scheduler.writer.on_full.append(self.hear)
            settings.govern(scheduler)
            scheduler.begin()
        except BaseException:
            journal.close()
            raise
        return settings, scheduler

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
                # The machine may be switched off meanwhile.
                with contextlib.suppress(Killed):
                    self.site.let_pass(self.rng.uniform(0.0, 40.0))
            # A scheduler that cannot write at its start does not start; its operator has to make room.
            self.full_until_s = 0.0
            if not self.calm and self.rng.random() < 0.3:
                self.kill_in = self.rng.randint(0, 30)
            try:
                before = self.scheduler
                (self.settings, self.scheduler), self.changed = self.made(), True
                before.archive.close()
                return
            except Killed:
                continue
        raise BrokenLawError("no scheduler could start")

    def is_full(self) -> bool:
        """Whether there is no room on the disk."""
        return self.time.monotonic() < self.full_until_s

    def has_no_files(self) -> bool:
        """Whether no file can be made on the disk, though there is room in those that are there."""
        return self.site.refuses

    def meanwhile(self) -> None:
        """The scheduler waits for room on the disk; users, jobs and faults do not wait."""
        if not self.calm:
            self.site.happen()

    # --- what users ask for -----------------------------------------------------------------------------------------

    def ask(self, command: Callable[[float], Any], acknowledged: Callable[[Any], None]) -> None:
        """Ask the scheduler for something, and hear of it when that is done."""
        self.expect(self.scheduler.engine.ask(command), acknowledged)

    def expect(self, answer: Future[Any], acknowledged: Callable[[Any], None]) -> None:
        """Hear of an answer when it comes."""
        self.waiting.append((answer, acknowledged))

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
        kind = rng.choice(FAULTS)
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
            self.set_date()
        elif kind == "reboot":
            self.reboot()
        elif kind == "blocked":
            gpu = rng.randrange(self.cluster.gpu_count)
            self.block({gpu: "somebody else computes there"})
            self.site.at(now_s + rng.uniform(1.0, 60.0), partial(self.block, {}))

    def node_fault(self) -> None:
        """Something happens to a node."""
        if self.calm:
            return
        rng, now_s, cluster = self.weather, self.time.monotonic(), self.cluster
        kind, node = rng.choice(NODE_FAULTS), rng.randrange(len(cluster.nodes))
        back_s = now_s + rng.choice((1.0, 10.0, 60.0)) * rng.uniform(0.5, 1.5)
        if kind == "freeze":
            self.site.freeze(node)
            if rng.random() < 0.5:
                self.site.at(now_s + rng.uniform(1.0, 15.0), partial(self.lose, node))
            self.site.at(back_s, partial(self.site.return_, node))
        elif kind == "lose":
            self.lose(node)
            if rng.random() < 0.8:
                self.site.at(back_s, partial(self.site.return_, node))
        elif kind == "join" and len(cluster.nodes) < MOST_NODES:
            name = rng.choice(("fast", "slow", "other"))
            self.site.join(Node(f"n{len(cluster.nodes)}", name, rng.choice((1, 2, 4))), TYPES[name])
        elif kind == "drain":
            self.users.drain(cluster.nodes[node].name, move=rng.random() < 0.5)
            if rng.random() < 0.5:
                self.site.at(back_s, partial(self.users.undrain, cluster.nodes[node].name))

    def lose(self, node: int) -> None:
        """A node is lost; what runs there may run on."""
        if not self.calm:
            self.site.lose(node, zombie=self.weather.random() < 0.5, late_s=self.weather.choice((0.0, 0.0, 0.5, 3.0)))

    def kill_soon(self) -> None:
        """Have the scheduler killed in one of its next steps."""
        if not self.calm:
            self.kill_in = self.rng.randint(0, 15)

    def set_date(self) -> None:
        """Somebody sets the time of day: by seconds, hours or years."""
        by_s = self.rng.choice(JUMPS_S) * self.rng.uniform(0.5, 1.5)
        self.time.set_date(by_s if 1e9 < self.time.time() + by_s < 4e9 else -by_s)

    def reboot(self) -> None:
        """The machine is switched off and on. Its date may be wrong then."""
        if self.one_node is None:
            # The scheduler's machine is none of the nodes, and attempts go on.
            raise Killed("scheduler's machine")
        for attempt in self.site.alive():
            self.site.kill_keeper(attempt)
        self.time.reboot(self.rng.choice((10.0, 600.0)))
        if self.rng.random() < 0.5:
            self.set_date()
        raise Killed("reboot")

    def accept(self) -> None:
        """Attempts can be started again."""
        self.site.refuses = False

    def block(self, blocked: dict[int, str]) -> None:
        """Others compute on some GPUs."""
        self.ask(lambda now_s: (self.scheduler.commands.block_gpus(blocked, now_s), None), lambda nothing: None)

    def at_rest(self) -> bool:
        """Whether all jobs have come and have ended, and their processes."""
        ended = all(record.state.ended for record in self.scheduler.store)
        return ended and not self.scheduler.store.arriving and not self.site.alive()


def several_nodes(rng: random.Random, names: Sequence[str]) -> Cluster:
    """One to four nodes, with GPUs of these types."""
    count = max(rng.randint(1, 4), len(names))
    kinds = [*names, *(rng.choice(names) for _ in range(count - len(names)))]
    nodes = [Node(f"n{number}", name, rng.choice((1, 2, 2, 4))) for number, name in enumerate(kinds)]
    return Cluster.of(nodes, [TYPES[name] for name in names])


def live_through(seed: int, *, nodes: bool = False) -> DaemonWorld:
    """One story, from beginning to end. `nodes`: on several nodes."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        world = DaemonWorld(seed, Path(folder), nodes=nodes)
        try:
            world.run()
        finally:
            world.scheduler.archive.close()
            world.scheduler.journal.close()
        return world


def main(arguments: list[str] | None = None) -> int:
    """Live through one story or many; the number of those that failed is the exit code, 100 at most."""
    parser = argparse.ArgumentParser(description="Simulate the life of the real scheduler under faults.")
    parser.add_argument("--seed", type=int, help="live through this one story, with the whole error")
    parser.add_argument("--seeds", type=int, default=1000, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--nodes", action="store_true", help="on several nodes, which may be lost")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        world = live_through(options.seed, nodes=options.nodes)
        told = f"{world.steps} steps, {world.kills} kills, {len(world.users.promised.jobs)} jobs"
        print(f"seed {options.seed}: {told}; all laws held")
        return 0
    failed = steps = kills = 0
    for seed in track(range(options.first, options.first + options.seeds), description="stories", console=None):
        try:
            world = live_through(seed, nodes=options.nodes)
            steps, kills = steps + world.steps, kills + world.kills
        except (Exception, Killed) as error:
            failed += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            which = f"--seed {seed}{' --nodes' * options.nodes}"
            print(f"python -m fairway.testing.daemon_world {which}  # {type(error).__name__}: {error} ({last.name})")
    print(f"{options.seeds} stories, {steps} steps, {kills} kills: {failed} failed")
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
