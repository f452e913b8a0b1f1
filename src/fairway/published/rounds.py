"""The engine of rounds: time advances by whole rounds, as in the simulators of Gavel (OSDI 2020) and Shockwave
(NSDI 2023).

In a round, every job that holds GPUs does as many whole steps as fit into it, and not more than it has left. The round
is over when the last of its jobs is done, so it may be shorter than its nominal length. A job that ends before that
keeps its GPUs until then. No job starts within a round. A job that adapts its batch size asks for another one at the
end of a round, and gets it at the end of the next round in which it runs. From then on its work is counted in steps of
the new size. See docs/rules.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from fairway.core.action import Move, Resize, Start, Suspend
from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.event import (
    Event,
    JobEvicted,
    JobFinished,
    NodeLost,
    NodeRestored,
    RateChanged,
    RegimeEntered,
    Woken,
)
from fairway.core.job import JobSpec, Regime
from fairway.models.adaptation import course_of
from fairway.models.regimes import regime_at
from fairway.published.round_job import RoundJob, RoundTurn
from fairway.simulator.job_engine import FEEDBACK_BATCHES, EngineOptions, JobEngine
from fairway.simulator.rates import Rates
from fairway.simulator.rules import Rules

NEARLY_S = 5.0
"""A job that computes for all but this much of a round is charged for its start, however short rounds are."""


class RoundEngine(JobEngine[RoundJob]):
    """Goes round by round.

    The loop has to ask for a decision at every instant that `poll` reports (its own `round_s` is 0).
    """

    def __init__(
        self, cluster: Cluster, jobs: Sequence[JobSpec], rates: Rates, rules: Rules, **about: Unpack[EngineOptions]
    ) -> None:
        super().__init__(cluster, jobs, rates, rules, **about)
        if not self.round_s > 0:
            raise InputError(
                f"the {rules.name} rules advance by whole rounds: a round must be longer than {self.round_s:g} s"
            )
        self.ledger.computed_gpu_s = 0.0
        self._rounds = 0
        # The published value is for rounds of 120 s: starts are charged in all rounds except short last ones.
        self._charged_from_s = min(rules.charged_from_s, max(self.round_s - NEARLY_S, 0.0))
        self._seen = 0

    def poll(self, until_s: float) -> Sequence[Event]:
        """The events at the end of the round; if nothing runs, those of the next instant, `until_s` at the latest."""
        if not self.left:
            return ()
        if self.running:
            return self._run_round()
        next_s = self._next_instant_s(until_s)
        if until_s < next_s:
            self.now_s = until_s
            return (Woken(until_s),) if self._may_go_on(next_s) else ()
        if next_s == math.inf:
            return ()
        self.now_s = next_s
        self._idle_wakes = 0
        events: list[Event] = []
        self._change_nodes(next_s, self._failures_s(next_s), events)
        self._admit(next_s, events)
        return events or (Woken(next_s),)

    def _stop(self, now_s: float, job: RoundJob, stop: Suspend | Resize | Move, events: list[Event]) -> None:
        self._release(job, now_s)

    def _begin(self, now_s: float, job: RoundJob, action: Start, rate: float) -> float:
        job.rate = rate
        absent = self._rounds > 0 and job.last_round != self._rounds - 1
        job.owes_s = self._restart_cost_s(job, absent)
        return now_s

    def _next_instant_s(self, until_s: float) -> float:
        next_s = min((self._arrivals.next_s, *self._down_until_s.values()))
        if self._outage is not None and (next_s < math.inf or until_s < math.inf):
            next_s = min(next_s, self._outage.start_s)
        return max(next_s, self.now_s)

    def _admit(self, now_s: float, events: list[Event]) -> None:
        """Submit the jobs that have arrived by now."""
        rates = self.rates
        for number, spec in self._arrivals.due(now_s):
            course = course_of(spec) if self.rules.adapts == "requests" and not spec.regimes else None
            course = course if course is not None and course.adapts else None
            job = RoundJob(number, spec, rates.work(spec), rates.regimes(spec)[0], course)
            alone_s = self.ledger.exclusive_s[number] = rates.alone_s(spec)
            job.most_ran_s = self.rules.most_run * alone_s if job.whole else math.inf
            job.first_round, job.seen_before = self._rounds, self._seen
            self._active[number] = job
            events.append(self._announcer.submitted(now_s, number, spec, spec.submitted_s))

    def _change_factor(self, now_s: float, job: RoundJob, events: list[Event]) -> None:
        """A mate came, left or was throttled: the job goes on at another speed."""
        job.factor = self._sharing.factor(job)
        job.rate = self._rate(job)
        events.append(RateChanged(now_s, job.job, job.progress, job.rate))

    def _release(self, job: RoundJob, end_s: float) -> None:
        """The job gives up its GPUs and keeps its progress."""
        held = (job.job, job.since_s, end_s, job.gpus, job.kind, job.lost_s, job.paid_s)
        self.ledger.held(*held, share=job.spec.gpu_share)
        job.gpus, job.rate, job.factor, job.throttle = (), 0.0, 1.0, 1.0
        job.lost_s = job.paid_s = 0.0
        self.running -= 1

    def _leave(self, job: RoundJob, end_s: float) -> list[RoundJob]:
        """The job gives up GPUs that it may share. Returns its mates, which go on at another speed."""
        mates = self._sharing.part(job) if job.mates else []
        for mate in mates:
            mate.factor = self._sharing.factor(mate)
            mate.rate = self._rate(mate)
        self._release(job, end_s)
        return mates

    def _run_round(self) -> Sequence[Event]:
        """One round from now to the end of its last job, with everything that happens at its end."""
        start_s = self.now_s
        self._seen += len(self._active)
        turns = self._turns(start_s)
        end_s = max(turn.finish_s for turn in turns)
        failed_s = self._failures_s(end_s)
        finished: list[tuple[RoundJob, float]] = []
        went_on: list[tuple[RoundJob, float, bool]] = []
        for turn in turns:
            if self._lost(turn, failed_s):
                turn.job.lost_s += end_s - start_s
                continue
            ran_s = self._book(turn, start_s)
            done_s = turn.job.ended_s(turn, start_s)
            if math.isnan(done_s):
                went_on.append((turn.job, ran_s, turn.steps > 0))
            else:
                finished.append((turn.job, done_s))
        self._rounds += 1
        self.now_s = end_s
        events: list[Event] = []
        for job, done_s in finished:
            self._finish(end_s, job, done_s, events)
        for job, ran_s, _ in went_on:
            events.append(RateChanged(end_s, job.job, job.progress, job.rate, ran_s))
        for job, _, made_steps in went_on:
            if made_steps:
                self._change_batch(end_s, job, events)
        self._change_nodes(end_s, failed_s, events)
        for job in self._active.values():
            job.review()
        self._admit(end_s, events)
        return events

    def _turns(self, start_s: float) -> list[RoundTurn]:
        """What every job with GPUs does in this round. The jobs of a pair end together, with the later one."""
        turns = [job.turn(start_s, self.round_s) for job in self._active.values() if job.gpus]
        ends_s: dict[int, float] = {}
        for turn in turns:
            if turn.job.mates:
                ends_s[turn.job.root] = max(ends_s.get(turn.job.root, start_s), turn.finish_s)
        if not ends_s:
            return turns
        return [turn._replace(finish_s=ends_s.get(turn.job.root, turn.finish_s)) for turn in turns]

    def _book(self, turn: RoundTurn, start_s: float) -> float:
        """Credit a job with its round. Returns how long it computed."""
        job = turn.job
        steps, ran_s = job.credit(turn, self._rounds, start_s, self._charged_from_s)
        if math.isnan(self.ledger.feedback_s[job.job]):
            self._note_feedback(job, steps, start_s)
        if job.host < 0:
            # Jobs on the same GPUs end together, so the host counts for all of them.
            self.ledger.computed_gpu_s += ran_s * len(job.gpus)
        return ran_s

    def _note_feedback(self, job: RoundJob, steps: float, start_s: float) -> None:
        """Note when the job had done its first mini-batches, if that was in this round."""
        target = self.rates.first_batches(job.spec, FEEDBACK_BATCHES, job.work)
        if steps and job.made >= target:
            self.ledger.feedback_s[job.job] = start_s + (target - (job.made - steps)) / job.rate

    def _finish(self, now_s: float, job: RoundJob, done_s: float, events: list[Event]) -> None:
        ledger = self.ledger
        ledger.finished_s[job.job] = done_s
        ledger.present[job.job] = (self._seen - job.seen_before) / (self._rounds - job.first_round)
        if math.isnan(ledger.feedback_s[job.job]):
            ledger.feedback_s[job.job] = done_s
        events.append(JobFinished(now_s, job.job))
        self._leave(job, done_s)
        del self._active[job.job]
        self.left -= 1

    def _change_batch(self, now_s: float, job: RoundJob, events: list[Event]) -> None:
        """A job that ran gets the batch size that it asked for before, or enters the next of its regimes."""
        spec, regimes = job.spec, self.rates.regimes(job.spec)
        if len(regimes) > 1:
            regime = regime_at(regimes, job.done / job.work)
            if regime is not job.regime:
                job.regime = regime
                self._enter(now_s, job, self.rates.speeds_in(spec, regime), events)
            return
        batch, job.asked = job.asked, 0
        if not batch or job.course is None:
            return
        speeds = self.rates.known_speeds(spec, batch)
        if any(speeds):
            job.work, job.done = job.course.rescaled(job.work, job.done, job.batch_size or 0, batch)
            job.regime = Regime(1.0, batch)
            self._enter(now_s, job, speeds, events)

    def _enter(self, now_s: float, job: RoundJob, speeds: tuple[float, ...], events: list[Event]) -> None:
        """A job goes on at another batch size. Jobs that no longer fit have to go."""
        for loser in self._sharing.losers(job) if job.mates else ():
            self._throw_out(now_s, loser, "no longer fits beside its partner", events)
        if job.gpus:
            job.factor = self._sharing.factor(job)
            job.rate = self._rate(job)
            if not job.rate > 0:
                self._throw_out(now_s, job, "outgrew its GPUs", events)
        for mate in job.mates.values():
            self._change_factor(now_s, mate, events)
        end, tail_s = job.regime.until * job.work, self.rates.tail_s(job.spec, job.regime, job.work)
        scaling = self._announcer.scaling(job.spec, job.regime)
        about = (job.batch_size or 0, speeds, end, tail_s, math.nan, job.work, scaling)
        events.append(RegimeEntered(now_s, job.job, job.progress, job.rate, *about))

    def _throw_out(self, now_s: float, job: RoundJob, why: str, events: list[Event]) -> None:
        """A job loses its GPUs at the end of a round and waits. Its mates go on."""
        mates = self._leave(job, now_s)
        events.append(JobEvicted(now_s, job.job, job.progress, why))
        events.extend(RateChanged(now_s, mate.job, mate.progress, mate.rate) for mate in mates)

    def _failures_s(self, until_s: float) -> dict[int, float]:
        """The nodes that fail until `until_s`, and when each fails."""
        failed_s: dict[int, float] = {}
        while self._outage is not None and self._outage.start_s <= until_s:
            start_s, node, down_s = self._outage.start_s, self._outage.node, self._outage.down_s
            if node not in self._down_until_s:
                failed_s[node] = start_s
            self._down_until_s[node] = max(start_s + down_s, self._down_until_s.get(node, 0.0))
            self._outage = next(self._outages, None)
        return failed_s

    def _lost(self, turn: RoundTurn, failed_s: dict[int, float]) -> bool:
        """Whether a job's round is lost because a node under it failed before it had done its work."""
        if not failed_s:
            return False
        nodes = {self.cluster.node_of_gpu[gpu] for gpu in turn.job.gpus}
        return any(not (turn.all_left and turn.finish_s <= failed_s[node]) for node in nodes & failed_s.keys())

    def _change_nodes(self, now_s: float, failed_s: dict[int, float], events: list[Event]) -> None:
        """Jobs on nodes that failed lose their GPUs. Repaired nodes come back."""
        for node in failed_s:
            events.append(NodeLost(now_s, node))
            for job in list(self._active.values()):
                if any(self.cluster.node_of_gpu[gpu] == node for gpu in job.gpus):
                    self._throw_out(now_s, job, "its node failed", events)
                    self._count_eviction(job)
        for node in [node for node, until_s in self._down_until_s.items() if until_s <= now_s]:
            del self._down_until_s[node]
            events.append(NodeRestored(now_s, node))
