"""The users and operators of a simulated scheduler: what they submit, ask for and change, and what they were promised.

An answer is a promise. `promised` keeps what was acknowledged until the same user asks for something else: from then on
it is open which of the two holds, because a scheduler may be killed before or after it has written the second down.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.tenant import TenantSpec
from fairway.placement.hierarchy import sizes_of
from fairway.placement.tenants import Tenants
from fairway.policies import make_policy
from fairway.runtime.daemon.config import Keep
from fairway.runtime.daemon.retention import due
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.jobs.draining import Drain
from fairway.runtime.jobs.records import JobRecord, family_of
from fairway.runtime.jobs.request import Dependency, DependencyKind, JobRequest, Preempt
from fairway.runtime.journal.database import DiskFullError
from fairway.testing.simulated_site import Behaviour, SimulatedSite, SimulatedTime

USERS, QUEUES = ("ann", "bob", "cy"), ("", "", "short")
POLICIES = (
    *("fifo", "fifo", "las", "tiresias", "srtf", "capacity", "max_min_fairness", "gandiva_fair:quantum_s=10"),
    *("optimus:interval_s=10", "themis:lease_s=10", "slaq:interval_s=10"),
    *("gandiva:quantum_s=10,trial_s=10,cooldown_s=20", "gandiva:quantum_s=5,trial_s=5,cooldown_s=5,pack=3"),
    *("antman:interval_s=5,hold_s=10,cooldown_s=10", "antman:interval_s=2,start=0.5,cooldown_s=5"),
)
"""Policies of all kinds. Their times are short, so that much happens in a story."""
SHARING = ("gandiva:", "antman:")
VERBS = ("cancel", "suspend", "hold", "hold", "release", "release", "requeue", "priority")


class UsersWorld(Protocol):
    """What users know of the world in which they live."""

    seed: int
    rng: random.Random
    folder: Path
    time: SimulatedTime
    site: SimulatedSite
    scheduler: Scheduler
    settings: Settings
    calm: bool

    @property
    def cluster(self) -> Cluster:
        """The machines that are there now."""
        ...

    def demand(self, holds: bool, law: str) -> None:
        """Say which law does not hold."""
        ...

    def kill_soon(self) -> None:
        """Have the scheduler killed in one of its next steps."""
        ...

    def ask(self, command: Callable[[float], Any], acknowledged: Callable[[Any], None]) -> None:
        """Ask the scheduler for something, and hear of it when that is done."""
        ...

    def expect(self, answer: Future[Any], acknowledged: Callable[[Any], None]) -> None:
        """Hear of an answer when it comes."""
        ...


@dataclass
class Promised:
    """What the scheduler has acknowledged. `jobs` are the ids of jobs by the key under which they were submitted.

    `arrays` are all that were submitted, acknowledged or not. `may_go` are jobs that have ended and are being deleted.

    `policies` are the policy in force and those that were asked for since: one of them is in force.
    """

    jobs: dict[str, str] = field(default_factory=dict)
    arrays: list[list[JobRequest]] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    suspended: set[str] = field(default_factory=set)
    may_go: set[str] = field(default_factory=set)
    policies: list[str] = field(default_factory=list)


class Users:
    """Everybody who talks to the scheduler."""

    def __init__(self, world: UsersWorld) -> None:
        self.promised = Promised()
        self._world = world
        self._rng = world.rng
        self._keys = 0
        self._releases: dict[str, int] = {}
        self._drains: dict[str, int] = {}
        # Stories differ in what most of their jobs are like.
        self._elastic = self._rng.choice((0.2, 0.9))
        self._priorities = self._rng.choice(((0, 0, 0, 1, -1), (0, -1, -1), (0,)))
        self._most_gpus = self._rng.choice((1, 2, 8))
        self._memory = random.Random(self._rng.getstate()[1][0])
        # From a source of its own, so that the other stories are as they were before there were shares.
        self._shares = random.Random(f"shares of {world.seed}")
        self._sharing = self._shares.choice((0.0, 0.0, 0.8))
        self._teams = random.Random(f"tenants of {world.seed}")
        self._tenanted = self._teams.choice((0.0, 0.0, 0.7))

    # --- jobs --------------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Somebody submits a job, or an array of them."""
        rng = self._rng
        self._keys += 1
        request = self._request(f"key-{self._keys}")
        if rng.random() < 0.25:
            request = replace(request, array_at_once=rng.choice((0, 1, 1, 2)))
            tasks = [request.task(number) for number in range(rng.randint(1, 6))]
            tasks = [replace(task, client_key=f"{task.client_key}/{task.array_task}") for task in tasks]
            self.promised.arrays.append(tasks)
            name = str(self._world.scheduler.store.next_id)
            self._send(tasks, array=True, again=0)
            # While it arrives, others submit, its owner sends it again or acts on it, or the scheduler is killed.
            if rng.random() < 0.3:
                self._send([self._request(f"{request.client_key} beside")], array=False, again=2)
            if rng.random() < 0.3:
                self._send(tasks, array=True, again=2)
            if rng.random() < 0.3:
                self.do(rng.choice(VERBS), name)
            if rng.random() < 0.3:
                self._world.kill_soon()
        else:
            self._send([request], array=False, again=0)

    def _request(self, key: str) -> JobRequest:
        rng, cluster = self._rng, self._world.cluster
        here = int(min(cluster.gpus_by_type))
        gpus, priority = rng.randint(1, min(here, self._most_gpus)), rng.choice(self._priorities)
        preempt: Preempt = rng.choice(("checkpoint", "checkpoint", "suspend", "restart", "never"))
        elastic = preempt == "checkpoint" and rng.random() < self._elastic
        behaviour = self._behaviour()
        return JobRequest(
            command=behaviour.command(),
            memory_bytes=self._memory.choice((0, behaviour.memory_bytes)),
            user=rng.choice(USERS),
            name=f"asked for {priority}",
            queue=rng.choice(QUEUES),
            gpus=gpus,
            gpus_min=rng.randint(1, gpus) if elastic else gpus,
            gpus_max=rng.randint(gpus, here) if elastic else gpus,
            gpu_share=self._share() if gpus == 1 and not elastic else 1.0,
            preempt=preempt,
            priority=priority,
            retries=rng.choice((0, 0, 2)),
            grace_s=rng.choice((1.0, 10.0, 60.0)),
            hold=rng.random() < 0.1,
            limit_s=rng.choice((None, None, None, 5.0, 60.0)),
            begin_s=self._world.time.time() + rng.uniform(-10.0, 40.0) if rng.random() < 0.2 else None,
            depends=self._dependencies(),
            client_key=key,
        )

    def _share(self) -> float:
        """What part of a GPU somebody asks for."""
        return self._shares.choice((0.5, 0.3, 0.25, 0.6, 0.125)) if self._shares.random() < self._sharing else 1.0

    def _behaviour(self) -> Behaviour:
        rng = self._rng
        return Behaviour(
            work_s=rng.choice((0.0, 1.0, 10.0, 40.0, 80.0, 120.0)) * rng.uniform(0.5, 1.5),
            code=rng.choice((0, 0, 0, 0, 3)),
            on_term=rng.choice(("saves", "saves", "dies", "ignores", "finishes")),
            stop_s=rng.choice((0.0, 0.5, 5.0, 100.0)),
            fails=rng.choice((0, 0, 0, 1, 3)),
            hangs=rng.random() < 0.05,
            memory_bytes=self._memory.choice((0, 1, 4, 8, 15)) << 30,
            move_s=self._memory.choice((0.1, 0.1, 3.0, -1.0)),
            rest_bytes=self._memory.choice((0, 1)) << 30,
            rest_stays=self._memory.random() < 0.3,
        )

    def _dependencies(self) -> tuple[Dependency, ...]:
        """Now and then a job waits for another one, or for an array."""
        names = list(self.promised.jobs.values())
        if not names or self._rng.random() < 0.8:
            return ()
        kind: DependencyKind = self._rng.choice(("afterok", "afterany", "afternotok"))
        return (Dependency(kind, self._name(names)),)

    def _name(self, names: list[str]) -> str:
        """A job, or the array that it is a task of."""
        name = self._rng.choice(names)
        return name.partition("_")[0] if self._rng.random() < 0.3 else name

    def _send(self, requests: list[JobRequest], *, array: bool, again: int) -> None:
        """Submit, and submit again under the same keys, as somebody does who has had no answer."""
        world, rng = self._world, self._rng

        def acknowledged(records: list[JobRecord]) -> None:
            world.demand(not array or len({family_of(one.id) for one in records}) == 1, "an array is one")
            for request, record in zip(requests, records, strict=True):
                known, ids = self.promised.jobs.get(str(request.client_key)), self.promised.jobs.values()
                if known is not None and known in self.promised.may_go and known != record.id:
                    # The first one is gone, with its key. The same key means another job from now on.
                    world.demand(world.scheduler.store.get(known) is None, f"{request.client_key} is one job")
                    del self.promised.jobs[str(request.client_key)]
                    world.demand(record.id not in ids, f"the id {record.id} is not used again")
                name = self.promised.jobs.setdefault(str(request.client_key), record.id)
                world.demand(name == record.id, f"{request.client_key} is one job")

        with suppress(DiskFullError, InputError):
            world.expect(world.scheduler.submission(requests, array=array), acknowledged)
        if again < 2 and rng.random() < 0.3:
            later_s = world.time.monotonic() + rng.uniform(1.0, 60.0)
            world.site.at(later_s, partial(self._send, requests, array=array, again=again + 1))

    def command(self) -> None:
        """Somebody does something to a job; as often as not to one whose GPUs are still being left by others."""
        names = list(self.promised.jobs.values())
        if not names:
            return
        granted = [name for name in names if self._is_about_to_start(name)]
        name = self._rng.choice(granted) if granted and self._rng.random() < 0.5 else self._name(names)
        verb = self._rng.choice(VERBS)
        self.do(verb, name)
        if verb in ("hold", "suspend") and self._rng.random() < 0.5:
            later_s = self._world.time.monotonic() + self._rng.uniform(0.0, 20.0)
            self._world.site.at(later_s, partial(self.do, "release", name))

    def _is_about_to_start(self, name: str) -> bool:
        scheduler = self._world.scheduler
        record = scheduler.store.get(name)
        return record is not None and record.state.waits and record.number in scheduler.state.held_gpus

    def do(self, verb: str, name: str) -> None:
        """Do something to a job or to all tasks of an array. What is acknowledged is promised."""
        commands, store, promised = self._world.scheduler.commands, self._world.scheduler.store, self.promised
        priority = self._rng.randint(-1, 2)
        changes = {"priority": priority, "name": f"asked for {priority}"}
        act = commands.changing(changes) if verb == "priority" else getattr(commands, verb)
        for record in store.tasks(name) if verb == "release" else ():
            self._releases[record.id] = self._releases.get(record.id, 0) + 1
            promised.held.discard(record.id)
            promised.suspended.discard(record.id)
        before = self._releases.copy()

        def acknowledged(records: list[JobRecord]) -> None:
            if verb == "cancel":
                promised.cancelled.update(one.id for one in records)
            elif verb in ("hold", "suspend"):
                since = {one.id for one in records if self._releases.get(one.id, 0) == before.get(one.id, 0)}
                (promised.held if verb == "hold" else promised.suspended).update(since)

        if verb == "cancel":
            self._world.expect(self._world.scheduler.cancellation(name), acknowledged)
        else:
            self._world.ask(commands.each(name, act), acknowledged)

    def end_all(self) -> None:
        """Release what can end by itself, and cancel what would never end."""
        world = self._world
        for record in world.scheduler.store:
            if not record.state.ended:
                behaviour = Behaviour.of(record.request.command)
                # Where jobs take turns, those that save nothing may never get to their end.
                saves = behaviour.on_term == "saves" and record.request.preempt != "restart"
                why = world.scheduler.guard.outside.get(record.number, "")
                # The time of day may have been set back by years since a job got its begin time.
                begins = record.request.begin_s is not None and not record.attempts
                early = begins and world.scheduler.jobs.eligibility.is_early(record, world.scheduler.clock.now_s())
                saves = saves and "never starts" not in why and not early
                if not saves or behaviour.hangs:
                    self.do("cancel", record.id)
                elif record.held or record.suspended:
                    self.do("release", record.id)
        # What was submitted meanwhile is to end, too.
        world.site.at(world.time.monotonic() + 50.0, self.end_all)

    def let_go(self) -> None:
        """Jobs that have ended are deleted: all but some, or those that ended some time ago."""
        world, rng = self._world, self._rng
        keep = Keep(rng.choice((None, 0.001, 20.0)), rng.choice((None, 0, 2)))
        if world.calm or keep == Keep(None, None):
            return
        scheduler = world.scheduler
        date_s = scheduler.clock.date_s(scheduler.clock.now_s())
        families = due(scheduler.archive.families(), keep, date_s)
        numbers = [number for family in families for number in family.jobs]
        records = list(scheduler.archive.records(numbers))
        world.demand(all(record.settled for record in records), "only jobs that have ended are deleted")
        # From now on they may be gone. Once that is acknowledged, those that nobody awaits are.
        self.promised.may_go.update(record.id for record in records)
        if numbers:
            world.ask(scheduler.forgetting(numbers), lambda gone: None)

    # --- operators ---------------------------------------------------------------------------------------------------

    def change_policy(self) -> None:
        """An operator changes the policy while jobs run: where policies let jobs share, mostly while they do."""
        world = self._world
        if world.calm:
            return
        if world.scheduler.policy_text.startswith(SHARING) and not self._any_shares() and self._rng.random() < 0.95:
            world.site.at(world.time.monotonic() + 2.0, self.change_policy)
            return
        text, asked = self._rng.choice(POLICIES), self.promised.policies
        asked.append(text)
        at = len(asked) - 1

        def acknowledged(nothing: None) -> None:
            # What was asked for before this one does not count any more.
            asked[:at] = [text] * at

        world.ask(world.scheduler.policy_change(make_policy(text), text), acknowledged)

    def _any_shares(self) -> bool:
        scheduler = self._world.scheduler
        targets = [scheduler.jobs.target(job) for job in scheduler.state.held_gpus]
        return any(target is not None and target.host >= 0 for target in targets)

    def drain(self, name: str, *, move: bool) -> None:
        """An operator drains a node. Once that is acknowledged, nothing may be started there."""
        world, drained = self._world, self._world.site.drained
        self._drains[name] = asked = self._drains.get(name, 0) + 1

        def acknowledged(moved: list[JobRecord]) -> None:
            if self._drains[name] == asked:
                drained.add(name)

        world.ask(world.scheduler.draining.drain(name, Drain("opera", "work"), move=move), acknowledged)

    def undrain(self, name: str) -> None:
        """An operator lets jobs start on a node again."""
        self._drains[name] = self._drains.get(name, 0) + 1
        self._world.site.drained.discard(name)
        self._world.ask(self._world.scheduler.draining.undrain(name), lambda nothing: None)

    def configure(self) -> None:
        """An operator edits the configuration, and mostly has it read at once."""
        world = self._world
        if world.calm:
            return
        self.write_config(self.configuration())
        if self._rng.random() < 0.8:
            world.settings.reload(world.scheduler)

    def configuration(self) -> str:
        """The text of a configuration: limits and priorities, and in some stories tenants."""
        text = configuration(self._rng, self._world.cluster.gpu_count)
        if self._teams.random() >= self._tenanted:
            return text
        # A queue that has a tenant must be there, if there are queues at all.
        owners = {"team": 'users = ["ann"]', "others": 'users = ["bob"]', "fast": 'queues = ["short"]'}
        names = self._teams.sample(list(owners), self._teams.randint(1, 3))
        cells = {name: self._cells() for name in names}
        try:
            Tenants(self._world.cluster, [TenantSpec.of(name, *cells[name]) for name in names])
        except InputError:
            return text
        lines = [f"[tenants.{name}]\ncells = {json.dumps(cells[name])}\n{owners[name]}" for name in names]
        return "\n".join([text, *lines])

    def _cells(self) -> list[str]:
        """What a tenant reserves; all tenants together may ask for more than there is."""
        cluster, rng = self._world.cluster, self._teams
        kinds = [f"{gpu.name}:" if len(cluster.types) > 1 else "" for gpu in cluster.types]
        sizes = sizes_of(cluster.nodes[0].gpus)
        return [f"{rng.choice(kinds)}{rng.randint(1, 2)}x{rng.choice(sizes)}" for _ in range(rng.randint(1, 2))]

    def write_config(self, text: str) -> None:
        """Write the file of the configuration."""
        (self._world.folder / FILE_NAME).write_text(text, encoding="utf-8")


def configuration(rng: random.Random, gpus: int) -> str:
    """The text of a configuration: some users and some queues have limits and priorities."""
    lines: list[str] = []
    for user in USERS:
        if rng.random() < 0.4:
            lines += [f"[users.{user}]", f"max_gpus = {rng.randint(1, gpus)}", f"priority = {rng.randint(-1, 1)}"]
            lines += [f"max_running = {rng.randint(1, 3)}"] if rng.random() < 0.3 else []
    if rng.random() < 0.4:
        lines += ["[queues.default]", f"priority = {rng.randint(-1, 1)}"]
        lines += ["[queues.short]", f"max_gpus = {rng.randint(1, gpus)}", f"max_gpus_per_user = {rng.randint(1, gpus)}"]
    return "\n".join(lines)
