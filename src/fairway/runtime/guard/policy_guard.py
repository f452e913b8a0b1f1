"""The policy guard: it shows a policy only eligible jobs of a live cluster. Each of the others waits with a reason.

A job is not eligible while its owner holds it, while it waits for another job, for a time or for a retry, or while its
user has all the GPUs that the configuration allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairway.core.admission import admit
from fairway.core.arrays import Ints
from fairway.core.check import check
from fairway.core.decision import Decision, nothing_granted
from fairway.core.plan import Placer
from fairway.core.policy import Layer, Policy
from fairway.core.snapshot import Snapshot
from fairway.core.texts import over
from fairway.placement import Packed
from fairway.placement.at_home import MOST_ASKS, by_row, other_types, sent_home
from fairway.placement.tenanted import Tenanted, is_layered
from fairway.placement.tenants import Tenants
from fairway.policies.fractions import ByShare
from fairway.policies.priorities import by_priority

RETRY_S = 10.0
"""The time after which a policy that failed is asked again."""


class Cut(NamedTuple):
    """The most GPUs that a row may be granted, and why. `gpu_type` is set if this applies to one type only."""

    gpus: int
    why: str
    gpu_type: int = -1


LOOKS_AHEAD = 3
"""How often a policy is asked what comes after the present jobs."""

FindCuts = Callable[[Snapshot, Decision], Mapping[int, Cut]]
"""Rows whose grants go beyond what their users may have, and rows that wait while nothing is left for them."""


class PolicyGuard:
    """A policy with a guard around it.

    `outside` maps the numbers of jobs that are not eligible to the reason. `blocked` gives the blocked GPUs, by number
    with the reason. `homes` gives the GPUs that hold the state of jobs, by job number. `in_turns` and `by_user` say how
    jobs share GPUs that ask for it (see `ByShare`). If there are `tenants`, the policy is asked about the virtual
    cluster of each, and `placer` places their jobs (see `Tenanted`).
    """

    def __init__(
        self,
        policy: Policy,
        limits: FindCuts | None = None,
        *,
        outside: dict[int, str] | None = None,
        blocked: Callable[[], Mapping[int, str]] = dict,
        homes: Callable[[], Mapping[int, tuple[int, ...]]] = dict,
        in_turns: Callable[[], bool] = bool,
        by_user: Callable[[], bool] = bool,
        tenants: Callable[[], Tenants | None] = lambda: None,
        placer: Placer | None = None,
    ) -> None:
        self.limits = limits
        self.outside = {} if outside is None else outside
        self.problem = ""
        self.took_s = 0.0
        self._blocked_now = blocked
        self._homes = homes
        self._in_turns, self._by_user = in_turns, by_user
        self.tenants = tenants
        self.placer = placer or Packed()
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Change to another policy. It is asked about one priority after the other."""
        self.policy = by_priority(policy)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def knows(self) -> frozenset[str]:
        return self.policy.knows

    @property
    def round_s(self) -> float:
        return self.policy.round_s

    def _layered(self, tenants: Tenants | None) -> Policy:
        """The policy, asked about bundles of shares, and about the virtual cluster of each tenant."""
        layer, by_user = self.policy, self._by_user
        if tenants is not None:
            caught = _Unfailing(layer, self._note_problem)
            layer = Tenanted(caught, tenants, self.placer, in_rounds=True, pinned=self._homes)
            by_user = bool if not (by_user() or tenants.claims_users) else lambda: True
        return ByShare(layer, homes=self._homes, blocked=self._blocked_now, in_turns=self._in_turns, by_user=by_user)

    def _note_problem(self, problem: str) -> None:
        self.problem = problem

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision about the eligible jobs. If it fails, running jobs go on, and others fill free GPUs.

        If a grant goes beyond a limit, or its job cannot have the GPUs that hold its state, the policy is asked again
        without that job, so that others get those GPUs.
        """
        began_s = time.perf_counter()
        homes = by_row(snapshot, self._homes())
        shut: dict[int, str] = {}
        barred = other_types(snapshot, homes)
        for _ in range(MOST_ASKS):
            decision, away = sent_home(snapshot, self._asked(snapshot, shut, barred), homes, self._blocked_now())
            cuts = self.limits(snapshot, decision) if self.limits is not None else {}
            beyond = [row for row, cut in cuts.items() if decision.gpus[row] > cut.gpus]
            again = bool(away.keys() - shut.keys())
            shut |= away
            again |= bool(beyond) and _shut(snapshot, cuts, shut, barred)
            if not again:
                break
        decision = _cut(decision, cuts, shut)
        blocked = len(self._blocked(snapshot))
        if blocked != decision.blocked:
            decision = decision._replace(blocked=blocked)
        self.took_s = time.perf_counter() - began_s
        return decision

    def plan(self, snapshot: Snapshot, decision: Decision) -> dict[int, int]:
        """In which order the policy would let jobs go on whose state is in the memory of their GPUs, by job number: 0
        is the next one on its GPU. Jobs that are far from their turn are left out.

        The policy is asked as if all jobs that get GPUs now had ended, and then again without those that it names. The
        answer decides nothing: it says whose memory is worth keeping on a GPU.
        """
        waits, rows = decision.gpus == 0, by_row(snapshot, self._homes()).items()
        homes = {row: home for row, home in rows if waits[row] and int(snapshot.jobs[row]) not in self.outside}
        there: dict[int, list[int]] = {}
        for row, home in homes.items():
            for gpu in home:
                there.setdefault(gpu, []).append(row)
        asked = any(len(on_gpu) > 1 for on_gpu in there.values())
        order = self._following(snapshot, decision, other_types(snapshot, homes)) if asked else list(homes)
        found: dict[int, int] = {}
        for on_gpu in there.values():
            for number, row in enumerate(row for row in order if row in on_gpu):
                job = int(snapshot.jobs[row])
                found[job] = min(number, found.get(job, number))
        return found

    def _following(self, snapshot: Snapshot, decision: Decision, barred: Mapping[int, set[int]]) -> list[int]:
        """The rows that the policy would serve after those that it serves now."""
        jobs = snapshot.jobs.tolist()
        rows = np.array([row for row in (decision.gpus == 0).nonzero()[0] if jobs[row] not in self.outside], dtype=int)
        order: list[int] = []
        for _ in range(LOOKS_AHEAD if len(rows) else 0):
            view = self._view(snapshot, rows, barred)
            try:
                after = self.policy.decide(view.part(memory=decision.memory, stopped=view.held.nonzero()[0].tolist()))
            except Exception:  # whatever is wrong with the policy, its decisions show it
                break
            order += rows[after.gpus > 0].tolist()
            rows = rows[after.gpus == 0]
            if not len(rows) or not after.gpus.any():
                break
        return order

    def _asked(self, snapshot: Snapshot, shut: Mapping[int, str], barred: Mapping[int, set[int]]) -> Decision:
        rows = self._inside(snapshot, shut)
        everybody = len(rows) == len(snapshot)
        tenants = self.tenants()
        if tenants is None and is_layered(snapshot.memory):
            snapshot = snapshot.part(memory={})
        view = self._view(snapshot, rows, barred)
        self.problem = ""
        try:
            # The layer of tenants has cells to keep even while it is asked about nobody.
            asks = len(rows) > 0 or tenants is not None
            decision = self._layered(tenants).decide(view) if asks else nothing_granted(0)
            check(view, decision)
        except Exception as error:
            self.problem = _failed(self.policy, error)
            decision = _without_policy(view, self.problem)
        return decision if everybody else self._whole(snapshot, decision, rows)

    def _inside(self, snapshot: Snapshot, shut: Mapping[int, str]) -> Ints:
        """The rows that the policy is asked about. All running jobs are among them: the guard only prevents starts."""
        if not self.outside and not shut:
            return np.arange(len(snapshot))
        held, outside = snapshot.held.tolist(), self.outside
        jobs = enumerate(snapshot.jobs.tolist())
        return np.array([row for row, job in jobs if held[row] or (job not in outside and row not in shut)], dtype=int)

    def _view(self, snapshot: Snapshot, rows: Ints, barred: Mapping[int, set[int]]) -> Snapshot:
        """What the policy sees: only these rows, no blocked GPUs, no types that rows may not use."""
        blocked = self._blocked(snapshot)
        if len(rows) == len(snapshot) and not blocked and not barred:
            return snapshot
        cluster, counts = snapshot.cluster, snapshot.capacity.copy()
        for gpu in blocked:
            counts[cluster.node_type[cluster.node_of_gpu[gpu]]] -= 1
        return snapshot.part(rows, capacity=counts, withheld=blocked.union(snapshot.withheld_gpus), barred=barred)

    def _blocked(self, snapshot: Snapshot) -> frozenset[int]:
        """The blocked GPUs that the cluster would otherwise count: no job holds them, and their node is up."""
        blocked = set(self._blocked_now())
        if not blocked:
            return frozenset()
        blocked.difference_update(*snapshot.frame.held_gpus.values())
        node_of_gpu, down = snapshot.cluster.node_of_gpu, snapshot.down_nodes
        return frozenset(gpu for gpu in blocked if node_of_gpu[gpu] not in down)

    def _whole(self, snapshot: Snapshot, decision: Decision, rows: Ints) -> Decision:
        """A decision about some rows as one about all: jobs that are not eligible get nothing."""
        jobs = snapshot.jobs.tolist()
        outside = {row: self.outside[job] for row, job in enumerate(jobs) if job in self.outside}
        whole = widened(decision, rows, len(snapshot))
        return whole._replace(texts=over(whole.texts, outside))


@dataclass(frozen=True)
class _Unfailing(Layer):
    """A policy inside virtual clusters: if it fails about one tenant, that costs the others nothing."""

    note: Callable[[str], None]

    def decide(self, snapshot: Snapshot) -> Decision:
        """The policy's decision. If it fails, running jobs go on, and others fill free GPUs."""
        try:
            decision = self.inner.decide(snapshot)
            check(snapshot, decision)
        except Exception as error:
            why = _failed(self.inner, error)
            self.note(why)
            return _without_policy(snapshot, why)
        return decision


def _failed(policy: Policy, error: Exception) -> str:
    return f"the policy {policy.name} failed: {type(error).__name__}: {error}"


def widened(decision: Decision, rows: Ints, total: int) -> Decision:
    """A decision about some rows as one about all `total` of them, with its memory."""
    return Decision.composed([(rows, decision)], total).remembering(decision.memory)


def _without_policy(snapshot: Snapshot, why: str) -> Decision:
    """Running jobs keep their GPUs. Waiting jobs get free GPUs, by priority and then in the order of submission."""
    decision = admit(snapshot, -snapshot.priority, preempt=False)
    guests, throttle = (snapshot.host >= 0).nonzero()[0], snapshot.throttle
    hosts = snapshot.rows_of(snapshot.host[guests])
    sharing = {*guests.tolist(), *hosts.tolist()}
    return decision._replace(
        wake_s=snapshot.now_s + RETRY_S,
        memory=snapshot.memory,
        partners=dict(zip(guests.tolist(), hosts.tolist(), strict=True)),
        throttles={row: float(throttle[row]) for row in sorted(sharing) if throttle[row] < 1},
        texts=dict.fromkeys((decision.gpus == 0).nonzero()[0].tolist(), why),
    )


def _shut(snapshot: Snapshot, cuts: Mapping[int, Cut], shut: dict[int, str], barred: dict[int, set[int]]) -> bool:
    """Shut out rows for which a limit leaves nothing, or bar them from the GPU type if the limit is for one type.

    Returns whether anything is new.
    """
    before = len(shut), sum(map(len, barred.values()))
    for row, cut in cuts.items():
        if cut.gpus:
            continue
        if cut.gpu_type >= 0:
            kinds = barred.setdefault(row, set())
            kinds.add(cut.gpu_type)
            usable = set((snapshot.speeds[:, row] > 0).nonzero()[0].tolist())
            if usable - kinds:
                continue
        shut[row] = cut.why
    return before != (len(shut), sum(map(len, barred.values())))


def _cut(decision: Decision, cuts: Mapping[int, Cut], shut: Mapping[int, str]) -> Decision:
    """The decision without what goes beyond a limit. Rows that were shut out get the reason."""
    if not cuts and not shut:
        return decision
    beyond = {row: cut.gpus for row, cut in cuts.items() if decision.gpus[row] > cut.gpus}
    stopped = [row for row, gpus in beyond.items() if not gpus]
    waits = [row for row, cut in cuts.items() if not decision.gpus[row] or not cut.gpus]
    decision = decision.without(stopped, texts={**shut, **{row: cuts[row].why for row in waits}})
    if len(stopped) == len(beyond):
        return decision
    gpus = decision.gpus.copy()
    for row in beyond:
        gpus[row] = beyond[row]
    placed, batches = decision.placements.items(), decision.batches.items()
    cut = decision._replace(
        gpus=gpus,
        placements={row: named for row, named in placed if gpus[row] == len(named)},
        # A split is for the GPUs that the policy gave.
        batches={row: split for row, split in batches if row not in beyond},
    )
    # A guest has no place on fewer GPUs than its own.
    large = [guest for guest, host in cut.partners.items() if gpus[guest] > gpus[host]]
    return cut.without(large, texts=dict.fromkeys(large, "a limit leaves its host fewer GPUs than it needs"))
