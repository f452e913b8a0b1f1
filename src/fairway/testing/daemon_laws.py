"""The laws that hold after every step of a live scheduler, whatever its users, its machine and its operators do.

Nothing is lost, and nothing runs twice. Run times are true, whatever is done to the time of day. No GPU has two owners,
unless they share it, and none two tenants. What was acknowledged is so. Every job that waits has a reason. Nobody gets
more than the configuration allows. The policy decides. What is on disk gives the same state again.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from fairway.core import columns
from fairway.core.state import State
from fairway.placement.tenants import Tenants
from fairway.runtime.daemon.clock import JUMP_S, MOST_OFF_S
from fairway.runtime.daemon.config import Config, parse_config
from fairway.runtime.daemon.scheduler import NOTE_EVERY_S, Scheduler
from fairway.runtime.daemon.settings import Settings
from fairway.runtime.guard.tenancy import ranked, virtual_clusters
from fairway.runtime.jobs.estimates import RESTART_S
from fairway.runtime.jobs.held_spans import HeldSpan, spans_of
from fairway.runtime.jobs.life import NODE_LOST
from fairway.runtime.jobs.live_jobs import MOST_LOST
from fairway.runtime.jobs.records import MOST_SPANS, JobRecord, JobState, family_of
from fairway.runtime.jobs.request import Dependency
from fairway.runtime.journal.archive import Wanted
from fairway.runtime.journal.recovery import Recovered
from fairway.runtime.processes.attempts import AttemptTarget
from fairway.runtime.processes.site import LOST, REFUSED
from fairway.testing.simulated_site import SIGN_EVERY_S, SimulatedAttempt, SimulatedSite
from fairway.testing.simulated_users import Promised

SOON_S = 0.01
LEAST_LIMIT_S = 0.1
"""Every attempt may run for this long, even if nothing is left of its job's time."""
SPAN_S = 0.005
"""How exact the times are that tell who held a GPU."""
MOST_LISTED = 1_000_000


class BrokenLawError(AssertionError):
    """A law does not hold."""


def demand(holds: bool, law: str) -> None:
    """Say which law does not hold."""
    if not holds:
        raise BrokenLawError(law)


class Laws:
    """Checks a scheduler and its successors. It remembers what may not change from one check to the next."""

    def __init__(self, site: SimulatedSite, promised: Promised) -> None:
        self._site = site
        self._promised = promised
        self._pairs: set[frozenset[int]] = set()
        self._holding: set[str] = set()
        self._stale: dict[int, float] = {}
        self._used: dict[tuple[str, str], float] = {}
        self._config = Config()
        self._date_seen = True
        self._outage_s: dict[str, float] = {}
        self._last_outage_s = 0.0
        self._looked = (site.time.boots, site.time.monotonic(), 0.0)
        self._gone: set[str] = set()

    def check(self, scheduler: Scheduler, settings: Settings, *, disk: bool) -> None:
        """Demand all laws; those about the disk if asked for, because they take longest."""
        demand(not scheduler.guard.problem, f"the policy decides: {scheduler.guard.problem}")
        _check_tenants(scheduler)
        self._check_promises(scheduler)
        self._check_attempts(scheduler, self._site.alive())
        self._check_throttles(scheduler)
        self._check_states(scheduler)
        self._check_arrays(scheduler)
        self._check_dependencies(scheduler)
        self._check_limits(scheduler, settings.config)
        self._check_clock(scheduler)
        self._check_begin_times(scheduler)
        self._check_run_times(scheduler)
        self._check_nodes(scheduler)
        self._last_outage_s = self._site.time.outage_s
        if disk:
            self._check_whole(scheduler)
            _check_spans(scheduler, self._site.time.outage_s)
            _check_disk(scheduler)
            _check_terms(scheduler)

    def _check_promises(self, scheduler: Scheduler) -> None:
        promised, store, held = self._promised, scheduler.store, scheduler.state.held_gpus
        awaited = scheduler.jobs.eligibility.awaited()
        for key, name in promised.jobs.items():
            there = store.get(name) is not None
            demand(there or name in promised.may_go, f"job {name} ({key}) was acknowledged and is there")
            demand(there or family_of(name) not in awaited, f"job {name} is there while others depend on it")
            demand(not there or name not in self._gone, f"job {name} is gone for ever")
            if not there:
                self._gone.add(name)
                demand(name in self._site.discarded, f"the folder of job {name} is gone")
        demand(self._site.discarded <= promised.may_go, "no folder is deleted but those of jobs that may go")
        # On a full disk a job is stopped before its record says so.
        given_up = {record.id for record in scheduler.engine.given_up()}
        for name in promised.cancelled - given_up:
            record = store.get(name)
            ended = name in promised.may_go if record is None else record.state.ended
            demand(ended, f"job {name} was cancelled and has ended")
        holding = {store[job].id for job in held}
        for name in promised.held:
            demand(name not in holding or name in self._holding, f"job {name} is held and gets no GPUs")
        for name in promised.suspended:
            demand(name not in holding, f"job {name} was suspended and has no GPUs")
        self._holding = holding
        demand(scheduler.policy_text in promised.policies, f"the policy is one of {promised.policies}")

    def _check_whole(self, scheduler: Scheduler) -> None:
        """All tasks of an array are there, or will be, or none."""
        store, may_go = scheduler.store, self._promised.may_go
        for tasks in self._promised.arrays:
            names = [record.id for record in store.known(tasks) if record is not None]
            whole = len(names) in (0, len(tasks)) or store.is_arriving(names[0]) or names[0] in may_go
            demand(whole, f"{names} are {len(tasks)} tasks")

    def _check_attempts(self, scheduler: Scheduler, alive: list[SimulatedAttempt]) -> None:
        jobs: set[str] = set()
        for attempt in alive:
            demand(attempt.job not in jobs, f"job {attempt.job} has one attempt")
            jobs.add(attempt.job)
        self._check_owners(scheduler)
        live = scheduler.engine.attempts.live
        for one in live.values():
            record = scheduler.store[one.job]
            for awaited in record.request.depends if one.status == "running" else ():
                others = scheduler.store.tasks(awaited.job)
                met = bool(others) and all(other.state.ended for other in others)
                demand(met, f"job {record.id} runs after job {awaited.job}")
        known = {scheduler.store[job].id for job in live}
        over = {one.job for path, one in self._site.attempts.items() if path in self._site.outcomes}
        demand(jobs <= known | over, f"the scheduler knows what runs: {jobs - known}")

    def _check_owners(self, scheduler: Scheduler) -> None:
        """No GPU has two owners, except for jobs that share it, or did until one of them was asked to leave."""
        self.note_pairs(scheduler)
        store = scheduler.store
        overlapping = _overlapping(scheduler)
        for pair, gpu in overlapping.items():
            names = " and ".join(store[job].id for job in sorted(pair))
            demand(pair in self._pairs, f"GPU {gpu} has one owner, not {names}")
        self._pairs &= overlapping.keys()

    def note_pairs(self, scheduler: Scheduler) -> None:
        """Remember which attempts share GPUs now. Call this before every round, too: it may part them."""
        live = scheduler.engine.attempts.live
        for pair in _overlapping(scheduler):
            if all(live[job].status != "stopping" for job in pair) and _share(scheduler, *pair):
                self._pairs.add(pair)

    def _check_throttles(self, scheduler: Scheduler) -> None:
        """A job computes as much of the time as it may, at the latest one step after that has changed."""
        stale: dict[int, float] = {}
        for live in scheduler.engine.attempts.live.values():
            target = scheduler.jobs.target(live.job) if live.status == "running" else None
            if target is not None and target.throttle != live.throttle:
                stale[live.job] = target.throttle
                late = self._stale.get(live.job) == target.throttle
                demand(not late, f"job {scheduler.store[live.job].id} computes for {target.throttle:g} of the time")
        self._stale = stale

    def _check_states(self, scheduler: Scheduler) -> None:
        reasons, state = scheduler.reasons.all(), scheduler.state
        settled = scheduler.loop.decision is not None and not scheduler.loop.owes_round
        shares: Counter[int] = Counter()
        # Under the configuration that was last put in force: a new scheduler may not have got to a newer one yet.
        tenants = virtual_clusters(
            _in_force(scheduler), scheduler.cluster, "the configuration", scheduler.cluster.types[0].name
        )
        for record in scheduler.store:
            holds = record.number in state.held_gpus
            over = [attempt.ended_s is not None for attempt in record.attempts]
            demand(all(over[:-1]), f"job {record.id} has one attempt that is not over")
            lives = scheduler.engine.lives(record.number)
            demand(not lives or not over[-1], f"the latest attempt of job {record.id} is not over")
            if record.state.ended:
                demand(not holds, f"job {record.id} is {record.state} and holds nothing")
                demand(record.number not in state.specs, f"job {record.id} has left the state")
                continue
            demand(record.number in state.specs, f"job {record.id} is in the state")
            priority = int(state.table.i[columns.PRIORITY, state.table.position(record.number)])
            demand(priority == ranked(record.request, tenants), f"job {record.id} has one priority")
            if holds:
                shares[state.held_gpus[record.number][0]] += round(record.request.gpu_share * 1000) % 1000
                least, most, gpus = record.request.gpus_min, record.request.gpus_max, state.held_gpus[record.number]
                demand(least <= len(gpus) <= most, f"job {record.id} has {least} to {most} GPUs, not {len(gpus)}")
            if record.state is JobState.RUNNING:
                demand(holds and lives, f"job {record.id} runs and has its GPUs")
            elif settled and record.state.waits and not holds:
                why = scheduler.guard.outside.get(record.number) or reasons.get(record.number)
                demand(bool(why), f"job {record.id} waits for a reason")
        demand(max(shares.values(), default=0) <= 1000, "no GPU is shared by jobs that ask for more than all of it")

    def _check_clock(self, scheduler: Scheduler) -> None:
        """The clock goes at the pace of the world, over restarts too, and dates are shown by the time of day."""
        time, clock = self._site.time, scheduler.clock
        boots, true_s, shown_s = self._looked
        now_s, passed_s = clock.now_s(), time.monotonic() - true_s
        if boots == time.boots:
            demand(abs(now_s - shown_s - passed_s) < SOON_S, f"the clock counts {passed_s}, not {now_s - shown_s}")
        else:
            # At least what was on disk has passed. There may have been several reboots since the last look.
            most_s = (time.boots - boots) * MOST_OFF_S + passed_s
            demand(-NOTE_EVERY_S < now_s - shown_s < most_s, f"a reboot takes {now_s - shown_s}")
            demand(now_s >= scheduler.state.now_s - SOON_S, "what has happened is not ahead")
        apart_s = clock.today_s(now_s) - time.time()
        # If it was set in the middle of a step, while the scheduler waited for its disk, the next step sees it.
        self._date_seen = time.dates_set == time.dates_seen
        time.dates_seen = time.dates_set
        demand(
            not self._date_seen or abs(apart_s) <= JUMP_S + SOON_S,
            f"dates are shown by the time of day, not {apart_s} later",
        )
        self._looked = (time.boots, time.monotonic(), now_s)

    def _check_run_times(self, scheduler: Scheduler) -> None:
        """What is booked is what the site ran; the time that an attempt takes to stop may be left out.

        The two may differ by the time in which no scheduler could act, and by a sign of life for each lost keeper.
        """
        attempts: dict[str, list[SimulatedAttempt]] = {}
        for one in self._site.attempts.values():
            attempts.setdefault(one.job, []).append(one)
        now_s, outage_s = scheduler.clock.now_s(), self._site.time.outage_s
        # Where retention has set a folder aside, the site knows no more what ran there.
        for record in (one for one in scheduler.store if one.id not in self._site.discarded):
            own = attempts.get(record.id, [])
            apart_s = outage_s - self._outage_s.setdefault(record.id, self._last_outage_s)
            apart_s += SOON_S + sum(SIGN_EVERY_S if one.lost else LEAST_LIMIT_S for one in own)
            apart_s += sum(one.unknown_s() for one in own)
            most_s = sum(one.run_s() for one in own)
            stops = (one.ran_before_stop_s for one in own)
            least_s = sum(one.run_s() if stop_s is None else stop_s for one, stop_s in zip(own, stops, strict=True))
            booked_s, limit_s = scheduler.engine.ran_s(record, now_s), record.request.limit_s or math.inf
            true = least_s - apart_s <= booked_s <= most_s + apart_s
            demand(true, f"job {record.id} ran {least_s} to {most_s} s and books {booked_s} (± {apart_s}) s")
            demand(least_s <= limit_s + apart_s, f"job {record.id} ran {least_s} s and may {limit_s} s")
            if record.state is JobState.TIMEOUT:
                demand(most_s >= limit_s - apart_s, f"job {record.id} ran {most_s} of {limit_s} s and timed out")

    def _check_begin_times(self, scheduler: Scheduler) -> None:
        """No job starts before its time of day, and none waits for a time that has passed."""
        demand(not self._site.early, f"jobs {self._site.early} do not start before their time")
        demand(not self._site.crowded, f"jobs {self._site.crowded} begin when the memory that they need is free")
        if scheduler.jobs.timers.next_s <= scheduler.clock.now_s() or not self._date_seen:
            # It looks next at whose time has come: commands come first, or it has waited for its disk.
            return
        today_s = self._site.time.time() - JUMP_S - SOON_S
        for record in scheduler.store:
            if not record.attempts and "not before" in scheduler.guard.outside.get(record.number, ""):
                demand((record.request.begin_s or 0.0) > today_s, f"the time of job {record.id} has come")

    def _check_nodes(self, scheduler: Scheduler) -> None:
        """Nothing is started where it may not be. No job pays for a node that was lost."""
        demand(
            not self._site.misplaced, f"jobs {self._site.misplaced} are not started on nodes that are away or drained"
        )
        state = scheduler.state
        lost = {node for node, change in scheduler.nodes.away.items() if change.status == "lost"}
        demand(lost <= state.occupancy.down, f"nodes {lost} are lost, not {state.occupancy.down}")
        for job, gpus in state.held_gpus.items():
            down = state.occupancy.down & {state.cluster.node_of_gpu[gpu] for gpu in gpus}
            demand(not down, f"job {scheduler.store[job].id} has GPUs on lost nodes {down}")
        for record in scheduler.store:
            failed = sum(one.cause not in (NODE_LOST, LOST.cause, REFUSED) for one in record.attempts)
            demand(record.failures <= failed, f"job {record.id} has failed {failed} times, not {record.failures}")
            if record.state is JobState.NODE_FAIL:
                times = sum(one.cause == LOST.cause for one in record.attempts)
                demand(times > MOST_LOST, f"job {record.id} has lost its keeper only {times} times")

    def _check_arrays(self, scheduler: Scheduler) -> None:
        """No more tasks of an array run at a time than its owner allows, and none waits for a place that is free."""
        arrays: dict[str, list[JobRecord]] = {}
        for record in scheduler.store:
            if record.request.array_at_once and not record.state.ended:
                arrays.setdefault(record.id.partition("_")[0], []).append(record)
        held, outside = scheduler.state.held_gpus, scheduler.guard.outside
        for name, tasks in arrays.items():
            most = tasks[0].request.array_at_once
            holding = [task for task in tasks if task.number in held]
            demand(len(holding) <= most, f"at most {most} tasks of array {name} have GPUs, not {len(holding)}")
            waiting = [task.id for task in tasks if "of its array" in outside.get(task.number, "")]
            inside = [task for task in tasks if task.number in held or task.number not in outside]
            demand(not waiting or len(inside) >= most, f"{waiting} wait for a place in their array that is taken")

    def _check_dependencies(self, scheduler: Scheduler) -> None:
        """A job waits for others exactly as long as one of them has not ended, or not in the way that is waited for."""
        store, outside = scheduler.store, scheduler.guard.outside
        for record in store:
            if not record.request.depends or not record.state.waits:
                continue
            met = all(_is_met(one, store.tasks(one.job)) for one in record.request.depends)
            why = outside.get(record.number, "")
            demand(not met or not why.startswith("waits for job"), f"job {record.id} waits for nothing, not: {why}")
            demand(met or bool(why), f"job {record.id} waits for other jobs")

    def _check_limits(self, scheduler: Scheduler, config: Config) -> None:
        """Nobody gets more than the configuration allows. Who had more before it changed may keep it."""
        used = dict[tuple[str, str], float]()
        for job, gpus in scheduler.state.held_gpus.items():
            request = scheduler.store[job].request
            held = len(gpus) * request.gpu_share
            for what, more in (("GPUs of user", held), ("running jobs of user", 1)):
                used[what, request.user] = used.get((what, request.user), 0) + more
            used["GPUs of queue", request.queue] = used.get(("GPUs of queue", request.queue), 0) + held
        for key, count in used.items():
            most = max(_allowed(config, *key), _allowed(self._config, *key), self._used.get(key, 0))
            demand(count <= most + 1e-9, f"{' '.join(key)}: at most {most:g}, not {count:g}")
        self._used, self._config = used, config


def _check_spans(scheduler: Scheduler, outage_s: float) -> None:
    """What is told of the past adds up to what is booked, and no GPU was two jobs' that do not share it."""
    held: dict[int, list[tuple[HeldSpan, JobRecord]]] = {}
    for record in scheduler.store:
        spans = [span for span in spans_of(record) if span.to_s is not None]
        gpu_s = sum(span.seconds * len(span.gpus) for span in spans) * record.request.gpu_share
        apart_s = SPAN_S * (1 + sum(len(attempt.spans or ()) for attempt in record.attempts)) * record.request.gpus_max
        # Of an attempt whose keeper is lost, and of one with many spans, less is told than booked. While no scheduler
        # could act, nobody saw when it went on.
        whole = all(
            one.cause not in (LOST.cause, NODE_LOST) and len(one.spans or ()) < MOST_SPANS for one in record.attempts
        )
        true = gpu_s <= record.gpu_s + apart_s and (
            not whole or gpu_s >= record.gpu_s - apart_s - outage_s * record.request.gpus_max
        )
        demand(true, f"job {record.id} held GPUs for {gpu_s} and books {record.gpu_s} GPU seconds")
        for span in spans:
            for gpu in span.gpus:
                held.setdefault(gpu, []).append((span, record))
    for gpu, on in held.items():
        on.sort(key=lambda one: one[0].from_s)
        for (one, first), (two, second) in itertools.pairwise(on):
            shared = one.host or two.host or min(first.request.gpu_share, second.request.gpu_share) < 1
            apart = two.from_s >= (one.to_s or 0.0) - SPAN_S
            demand(bool(shared) or apart, f"GPU {gpu} was of jobs {first.id} {one} and {second.id} {two} at once")


def _is_met(dependency: Dependency, others: list[JobRecord]) -> bool:
    completed = [other.state is JobState.COMPLETED for other in others]
    wanted = {"afterok": all(completed), "afternotok": not all(completed), "afterany": True}
    return bool(others) and all(other.state.ended for other in others) and wanted[dependency.kind]


def _overlapping(scheduler: Scheduler) -> dict[frozenset[int], int]:
    """The pairs of jobs that are on one GPU, with that GPU."""
    pairs, owners = dict[frozenset[int], int](), dict[int, list[int]]()
    for live in scheduler.engine.attempts.live.values():
        # A suspended job whose owner cancels it or puts it back in the queue has to go on for a moment to stop.
        # On a node that does not answer it has not heard of that, and still stands still.
        handle = live.handle if isinstance(live.handle, SimulatedAttempt) else None
        moment = handle is not None and (handle.woken_to_stop or (handle.paused and bool(handle.unheard)))
        for gpu in live.gpus if live.status != "paused" and not moment else ():
            others = owners.setdefault(gpu, [])
            pairs.update((frozenset((other, live.job)), gpu) for other in others)
            others.append(live.job)
    return pairs


def _share(scheduler: Scheduler, one: int, other: int) -> bool:
    """Whether two jobs share their GPUs: one is the other's host, or both are guests of the same."""
    hosts = set[int]()
    for job in (one, other):
        target = scheduler.jobs.target(job)
        hosts.add(job if target is None or target.host < 0 else target.host)
    return len(hosts) == 1


def _allowed(config: Config, what: str, name: str) -> float:
    if what == "GPUs of queue":
        most = config.queue_of(name).max_gpus
    else:
        terms = config.user_of(name)
        most = terms.max_gpus if what == "GPUs of user" else terms.max_running
    return math.inf if most is None else most


def _check_disk(scheduler: Scheduler) -> None:
    """What is on disk gives the same state again."""
    live = scheduler.state
    new_state = partial(State, live.cluster, min_run_s=live.min_run_s, restarts_spared=live.restarts_spared)
    journal, devices = scheduler.journal, scheduler.engine.devices
    facts, origin_s = journal.facts(), scheduler.clock.origin_s
    again = Recovered(journal, facts, scheduler.cluster, devices, new_state, origin_s, RESTART_S)
    again.archive.close()
    demand(not again.problem, f"the log is sound: {again.problem}")
    ours = {record.id: record.state for record in scheduler.lists.submitted(Wanted(), MOST_LISTED)}
    stored = {job.id: JobState(job.record["state"]) for job in journal.jobs()}
    demand(stored == ours, "the records on disk are these")
    demand(again.store.past.states == +scheduler.store.past.states, "the totals on disk are these")
    next_ones = (again.store.next_number, again.store.next_id)
    demand(next_ones == (scheduler.store.next_number, scheduler.store.next_id), "no number and no id is used again")
    demand(_targets(again.state) == _targets(scheduler.state), "the log leads to the same GPUs, hosts and throttles")
    demand(again.state.occupancy.down == scheduler.state.occupancy.down, "the log leads to the same lost nodes")
    pairs = zip(again.state.speeds().items(), scheduler.state.speeds().items(), strict=True)
    same = all(one == two and np.allclose(before, after) for (one, before), (two, after) in pairs)
    demand(same, "the log leads to the same speeds")


def _targets(state: State) -> dict[int, AttemptTarget]:
    made = dict[int, AttemptTarget]()
    for job, gpus in state.held_gpus.items():
        row = state.table.position(job)
        host, throttle = state.table.i[columns.HOST, row], state.table.f[columns.THROTTLE, row]
        made[job] = AttemptTarget(gpus, int(host), float(throttle))
    return made


def _check_tenants(scheduler: Scheduler) -> None:
    """No two tenants have the same GPU, and none has one that counts as free."""
    tenants, memory = scheduler.guard.tenants(), scheduler.state.memory
    if tenants is None or memory.get("cells of tenants") != tenants.text:
        return
    taken = [place for starts in _free_cells(tenants, memory["free"]) for place in starts]
    for part in tenants.parts:
        for cell, start in memory["tenants"][part.name]["bound"].items():
            taken += range(start, start + part.cells[int(cell)].gpus)
    demand(sorted(taken) == list(range(len(tenants.layout.gpu_at))), "every GPU is in one cell")


def _free_cells(tenants: Tenants, free: Sequence[Sequence[Sequence[int]]]) -> Iterator[range]:
    for chain, levels in zip(tenants.layout.chains, free, strict=True):
        for size, starts in zip(chain.sizes, levels, strict=True):
            yield from (range(start, start + size) for start in starts)


def _check_terms(scheduler: Scheduler) -> None:
    """The priority of each job is what its owner asked for and what the configuration adds, once."""
    config = _in_force(scheduler)
    for record in scheduler.store:
        if not record.state.ended:
            request = record.request
            added = config.user_of(request.user).priority + config.queue_of(request.queue).priority
            asked = int(request.name.rpartition(" ")[2])
            demand(request.priority == asked + added, f"job {record.id} has priority {asked} + {added}")


def _in_force(scheduler: Scheduler) -> Config:
    """The configuration that was last put in force."""
    return parse_config(str(scheduler.journal.facts(("config",)).get("config", "")))
