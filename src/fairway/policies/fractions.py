"""Shares of a GPU around any policy: jobs that ask for a part of one GPU are put together, and the policy sees one job.

Jobs that ask for shares and sit on one GPU are a *bundle*. The policy is asked about one job of each bundle, its head,
as if that asked for a whole GPU. When the head runs, the others run on its GPU as guest and host. So every policy works
with shares, and decides about whole GPUs only. To the policy, the service of a head is that of a GPU.

Jobs that wait are seated in the order of submission, where the least room is left afterwards: on a GPU whose jobs all
ask for shares, otherwise in a bundle that waits. This takes no GPU from any other job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairway.core import columns as c
from fairway.core.arrays import Ints, frozen
from fairway.core.check import check
from fairway.core.decision import Decision, Reason
from fairway.core.policy import Layer
from fairway.core.sharing import WHOLE, thousandths
from fairway.core.snapshot import Snapshot
from fairway.core.texts import Texts, over
from fairway.policies.bundles import Bundle, Homes, Seating
from fairway.policies.turns import turns


@dataclass(frozen=True)
class ByShare(Layer):
    """A policy that is asked about bundles of jobs instead of jobs that ask for shares.

    Knows: what the inner policy knows, and shares. While no job asks for a share, the layer changes nothing. Jobs of
    different priorities or queues are in different bundles; with `by_user`, jobs of different users too. `in_turns`
    throttles the jobs of a bundle so that each computes for its share of the time. `homes` gives the GPUs that hold the
    state of jobs, by job number; such a job runs nowhere else. No job joins others on GPUs that are `blocked`.
    """

    in_turns: Callable[[], bool] = bool
    by_user: Callable[[], bool] = bool
    homes: Callable[[], Homes] = dict
    blocked: Callable[[], Collection[int]] = frozenset

    def decide(self, snapshot: Snapshot) -> Decision:
        """Decide about the heads of bundles. The others run with them."""
        rows = (snapshot.share < 1).nonzero()[0].tolist()
        if not rows:
            return self.inner.decide(snapshot)
        asked = thousandths(snapshot.share).tolist()
        seating = Seating(snapshot, asked, self.homes(), self.blocked(), by_user=self.by_user())
        bundles = seating.bundles(rows)
        hidden = {row for bundle in bundles for row in bundle.rows if row != bundle.head}
        seen: Ints = np.array([row for row in range(len(snapshot)) if row not in hidden], dtype=np.int64)
        heads = np.searchsorted(seen, [bundle.head for bundle in bundles])
        view = _view(snapshot, seen, heads, bundles)
        load = {at: bundle.asked for at, bundle in zip(heads.tolist(), bundles, strict=True)}
        decision = self.inner.decide(view)
        check(view, decision)
        decision = _within_one_gpu(decision, load)
        whole = self._with_members(snapshot, view, seen, decision, bundles) if hidden else decision
        return _eased(snapshot, whole, rows)

    def _with_members(
        self, snapshot: Snapshot, view: Snapshot, seen: Ints, decision: Decision, bundles: Sequence[Bundle]
    ) -> Decision:
        """The decision about heads as one about all jobs: the members of a bundle get what its head gets."""
        whole = Decision.composed([(seen, decision)], len(snapshot)).remembering(decision.memory)
        members, heads = _members(bundles)
        for column in (whole.gpus, whole.reasons, whole.gpu_types):
            if column is not None:
                column[members] = column[heads]
        granted = whole.gpus.tolist()
        host_of = {bundle.head: bundle.host for bundle in bundles if bundle.head != bundle.host}
        partners = {guest: host_of.get(host, host) for guest, host in whole.partners.items()}
        throttles, waits = dict(whole.throttles), dict[int, int]()
        for bundle in bundles:
            head, rows = bundle.head, bundle.rows
            if not granted[head]:
                waits |= {row: head for row in rows if row != head}
                continue
            host, given = partners.pop(head, bundle.host), throttles.pop(head, 1.0)
            partners |= {row: host for row in rows if row != host}
            if given < 1 or self.in_turns():
                throttles |= self._throttles(bundle, given)
        return whole._replace(
            partners=partners,
            placements={host_of.get(row, row): named for row, named in whole.placements.items()},
            throttles=throttles,
            order=[host_of.get(row, row) for row in whole.order],
            texts=over(_texts(view, seen, decision, waits), whole.texts),
        )

    def _throttles(self, bundle: Bundle, given: float) -> dict[int, float]:
        """What part of the time each job of a bundle may compute, if not all of it; `given` to all of them together."""
        parts = turns(bundle.shares) if given == 1 else [share / bundle.asked for share in bundle.shares]
        found = zip(bundle.rows, parts, strict=True)
        return {row: round(part * given, 9) for row, part in found if part * given < 1}


def _view(snapshot: Snapshot, seen: Ints, heads: Ints, bundles: Sequence[Bundle]) -> Snapshot:
    """What the policy sees: each bundle is its head, which has its GPU alone and can be stopped when all others can."""
    floats, ints = snapshot.floats[:, seen], snapshot.ints[:, seen]
    floats[c.SHARE, heads], floats[c.ATTAINED0_GPU_S, heads] = 1.0, floats[c.ATTAINED0_S, heads]
    members, heads_of = _members(bundles)
    at_heads, until_s = np.searchsorted(seen, heads_of), np.where(snapshot.running, snapshot.protected_until_s, 0.0)
    np.maximum.at(floats[c.PROTECTED_UNTIL_S], at_heads, until_s[members])
    if len(snapshot.capacity) > 1:
        usable = snapshot.speeds[:, members] > 0
        np.minimum.at(floats[c.SPEEDS :].T, at_heads, np.where(usable, np.inf, 0.0).T)
    for at, bundle in zip(heads.tolist(), bundles, strict=True):
        if bundle.head != bundle.host:
            ints[c.HOST, at] = -1
            ints[c.HOST, ints[c.HOST] == snapshot.jobs[bundle.host]] = snapshot.jobs[bundle.head]
        # Beside a job that asks for whole GPUs, all of the bundle together have the part of the time that it was given.
        part = bundle.asked / bundle.shares[bundle.rows.index(bundle.head)] if ints[c.HOST, at] >= 0 else np.inf
        floats[c.THROTTLE, at] = min(floats[c.THROTTLE, at] * part, 1.0)
    return Snapshot.of(
        frame=snapshot.frame,
        floats=frozen(floats),
        ints=frozen(ints),
        now_s=snapshot.now_s,
        round=snapshot.round,
        capacity=snapshot.capacity,
        memory=snapshot.memory,
        knows=snapshot.knows,
        guarded=snapshot.guarded,
    )


def _members(bundles: Sequence[Bundle]) -> tuple[Ints, Ints]:
    """The rows of all jobs that are no heads, and the rows of their heads."""
    pairs = [(row, bundle.head) for bundle in bundles if len(bundle.rows) > 1 for row in bundle.rows]
    found = np.array([pair for pair in pairs if pair[0] != pair[1]], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _within_one_gpu(decision: Decision, load: Mapping[int, int]) -> Decision:
    """The decision without guests that would make the shares on a GPU more than one GPU. `load` is in thousandths.

    A policy that packs jobs takes a guest that does not start for one that did not fit, and tries another.
    """
    taken: dict[int, int] = {}
    crowded: list[int] = []
    for guest, host in decision.partners.items() if load else ():
        total = taken.setdefault(host, load.get(host, 0)) + load.get(guest, 0)
        if guest in load and total > WHOLE:
            crowded.append(guest)
        else:
            taken[host] = total
    if not crowded:
        return decision
    return decision.without(crowded, Reason.OTHER, dict.fromkeys(crowded, "the shares on that GPU are all taken"))


def _eased(snapshot: Snapshot, decision: Decision, rows: Sequence[int]) -> Decision:
    """The decision in which jobs that were throttled beside others, and are alone now, have all of the time."""
    throttle = snapshot.throttle
    if not (throttle < 1).any():
        return decision
    sharing = {*decision.partners, *decision.partners.values()}
    alone = {row: 1.0 for row in rows if throttle[row] < 1 and decision.gpus[row] and row not in sharing}
    return decision._replace(throttles={**decision.throttles, **alone}) if alone else decision


def _texts(view: Snapshot, seen: Ints, decision: Decision, waits: Mapping[int, int]) -> Mapping[int, str]:
    """Why the members of bundles wait: their head does."""
    if not waits:
        return {}

    def say(row: int) -> str:
        at = int(np.searchsorted(seen, waits[row]))
        return f"will share a GPU with job {view.job_id(int(view.jobs[at]))}, which waits: {decision.reason(view, at)}"

    return Texts(np.array(sorted(waits), dtype=np.int64), say)
