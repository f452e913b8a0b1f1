"""Limits from the configuration, applied at every decision.

Limits never stop a running job. They keep other jobs from starting, and elastic jobs from growing, while their queue or
their user uses all that it may. Which job comes first within a limit stays the policy's decision: the policy is asked,
grants beyond a limit are removed, and it is asked again about the rest, so that a limit leaves no GPUs idle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fairway.core.arrays import Ints
from fairway.core.cluster import Cluster
from fairway.core.decision import Decision
from fairway.core.sharing import WHOLE, thousandths
from fairway.core.snapshot import Snapshot
from fairway.runtime.daemon.config import NO_CONFIG, Config, Queue, Terms
from fairway.runtime.guard.policy_guard import Cut
from fairway.runtime.jobs.estimates import same_type

ANY_TYPE = -1


@dataclass
class Account:
    """What one queue, one user, or one user of a queue may use at a time, and uses. `used` is in thousandths of a GPU,
    because jobs may have shares."""

    who: str
    most_gpus: float = math.inf
    most_jobs: float = math.inf
    gpu_type: int = ANY_TYPE
    type_name: str = ""
    user: int | None = None
    queue: int | None = None
    used: int = 0
    jobs: int = 0

    def counts(self, gpu_type: int) -> bool:
        """Whether GPUs of this type are counted here."""
        return self.gpu_type in (ANY_TYPE, gpu_type)

    def room(self, share: int, *, starts: bool) -> float:
        """How many more GPUs a job may have; each counts for `share` thousandths."""
        if starts and self.jobs >= self.most_jobs:
            return 0
        return max(self.most_gpus * WHOLE - self.used, 0) // share

    def why(self) -> str:
        """The reason for jobs that have to wait because of this account."""
        if self.jobs >= self.most_jobs:
            return f"{self.who} has {self.jobs} job{'s' * (self.jobs != 1)} running and may have {self.most_jobs:g}"
        kind = f" {self.type_name}" if self.type_name else ""
        return (
            f"{self.who} has {self.used / WHOLE:g} of the {self.most_gpus:g}{kind} GPUs that the configuration allows"
        )


class Limits:
    """The limits of a configuration, for the policy guard: which grants of a decision go beyond them."""

    def __init__(self, config: Config = NO_CONFIG) -> None:
        self.config = config
        terms = (*config.queues.values(), *config.users.values())
        self._none = not any(_limits(one) for one in terms)

    def __call__(self, snapshot: Snapshot, decision: Decision) -> Mapping[int, Cut]:
        """Rows that are granted too much, and rows that wait while their account is used up."""
        if self._none:
            return {}
        ledger = _Ledger(self.config, snapshot)
        for row in snapshot.running_rows.tolist():
            kept = min(int(decision.gpus[row]), int(snapshot.held[row]))
            if kept:
                ledger.charge(row, int(snapshot.gpu_type[row]), kept, starts=True)
        cuts: dict[int, Cut] = {}
        full: list[Account] = []
        for row in _grown(snapshot, decision):
            most, account = ledger.grant(row, _type_of(snapshot, decision, row), int(decision.gpus[row]))
            if account is not None:
                cuts[row] = Cut(most, account.why(), account.gpu_type)
                if not most and account not in full:
                    full.append(account)
        for account in full:
            for row in ledger.waiting(account, decision):
                cuts.setdefault(row, Cut(0, account.why(), account.gpu_type))
        return cuts


class _Ledger:
    """The accounts of a snapshot's rows, made when a row first needs them."""

    def __init__(self, config: Config, snapshot: Snapshot) -> None:
        self.config = config
        self.snapshot = snapshot
        self._users, self._queues, self._shares = snapshot.user, snapshot.queue, thousandths(snapshot.share)
        self._of: dict[tuple[int, int], list[Account]] = {}
        self._opened: dict[tuple[str, int, int], list[Account]] = {}

    def of(self, row: int) -> list[Account]:
        """All accounts that a row is charged to."""
        user, queue = int(self._users[row]), int(self._queues[row])
        found = self._of.get((user, queue))
        if found is None:
            names = self.snapshot.names
            found = self._of[user, queue] = list(self._open(user, queue, names.users[user], names.queues[queue]))
        return found

    def _open(self, user: int, queue: int, user_name: str, queue_name: str) -> Iterator[Account]:
        cluster = self.snapshot.cluster
        terms, queued = self.config.user_of(user_name), self.config.queue_of(queue_name)
        yield from self._once("user", user, -1, lambda: _accounts(terms, f"user {user_name}", cluster, user, None))
        yield from self._once(
            "queue", -1, queue, lambda: _accounts(queued, f"queue {queue_name}", cluster, None, queue)
        )
        per_user = Terms(max_gpus=queued.max_gpus_per_user, max_running=queued.max_running_per_user)
        who = f"user {user_name} in queue {queue_name}"
        yield from self._once("both", user, queue, lambda: _accounts(per_user, who, cluster, user, queue))

    def _once(self, kind: str, user: int, queue: int, made: Callable[[], Iterator[Account]]) -> list[Account]:
        key = (kind, user, queue)
        if key not in self._opened:
            self._opened[key] = list(made())
        return self._opened[key]

    def charge(self, row: int, gpu_type: int, gpus: int, *, starts: bool) -> None:
        """Book GPUs for a row."""
        for account in self.of(row):
            account.jobs += starts and account.gpu_type == ANY_TYPE
            account.used += gpus * int(self._shares[row]) if account.counts(gpu_type) else 0

    def grant(self, row: int, gpu_type: int, asked: int) -> tuple[int, Account | None]:
        """How many of the GPUs asked for a row may have, and the account that forbids more."""
        held, least = int(self.snapshot.held[row]), int(self.snapshot.gpus_min[row])
        most, tightest = asked, None
        for account in self.of(row):
            share = int(self._shares[row])
            room = account.room(share, starts=not held) if account.counts(gpu_type) else math.inf
            if held + room < most:
                most, tightest = int(held + room), account
        most = most if most >= least else 0
        most = max(most, held)
        if most > held:
            self.charge(row, gpu_type, most - held, starts=not held)
        return most, tightest

    def waiting(self, account: Account, decision: Decision) -> list[int]:
        """The rows that wait and are charged to an account."""
        rows: Ints = (self.snapshot.held == 0) & (decision.gpus == 0)
        if account.user is not None:
            rows &= self._users == account.user
        if account.queue is not None:
            rows &= self._queues == account.queue
        return [int(row) for row in rows.nonzero()[0]]


def _limits(terms: Terms) -> bool:
    own = terms.max_gpus is not None or terms.max_running is not None or bool(terms.types)
    if isinstance(terms, Queue):
        own |= terms.max_gpus_per_user is not None or terms.max_running_per_user is not None
    return own


def _accounts(terms: Terms, who: str, cluster: Cluster, user: int | None, queue: int | None) -> Iterator[Account]:
    if terms.max_gpus is not None or terms.max_running is not None:
        gpus = math.inf if terms.max_gpus is None else terms.max_gpus
        jobs = math.inf if terms.max_running is None else terms.max_running
        yield Account(who, gpus, jobs, user=user, queue=queue)
    for name, most in terms.types.items():
        for kind, gpu in enumerate(cluster.types):
            if same_type(gpu.name, name):
                yield Account(who, most, gpu_type=kind, type_name=gpu.name, user=user, queue=queue)


def _grown(snapshot: Snapshot, decision: Decision) -> list[int]:
    """Rows that are granted more GPUs than they hold, in the order in which they are served."""
    rows = (decision.gpus > snapshot.held).nonzero()[0].tolist()
    turn = {row: at for at, row in enumerate(decision.order)}
    return sorted(rows, key=lambda row: (turn.get(row, len(turn)), row))


def _type_of(snapshot: Snapshot, decision: Decision, row: int) -> int:
    """The type that a row is granted; the type that is tried first if the placement may choose."""
    if snapshot.held[row]:
        return int(snapshot.gpu_type[row])
    kind = -1 if decision.gpu_types is None else int(decision.gpu_types[row])
    return kind if kind >= 0 else int(np.argmax(snapshot.speeds[:, row]))
