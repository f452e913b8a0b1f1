"""Policies that each break one clause of the contract. `check_policy` must refuse every one of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairway.core.admission import admit
from fairway.core.decision import Decision
from fairway.core.order import Order, submission
from fairway.core.snapshot import Snapshot


@dataclass(frozen=True)
class Base:
    """A lawful policy; each subclass spoils one thing."""

    name: ClassVar[str] = "base"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, preempt=False)


@dataclass(frozen=True)
class GrantsTooMuch(Base):
    name: ClassVar[str] = "grants-too-much"

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(snapshot.gpus.copy(), np.zeros(len(snapshot), dtype=np.int8))


@dataclass(frozen=True)
class SplitsGangs(Base):
    name: ClassVar[str] = "splits-gangs"

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = admit(snapshot, preempt=False)
        large = (decision.gpus > 1) & (snapshot.gpus_min == decision.gpus) & (snapshot.held == 0)
        return decision._replace(gpus=decision.gpus - large)


@dataclass(frozen=True)
class ForgetsReasons(Base):
    name: ClassVar[str] = "forgets-reasons"

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = admit(snapshot, preempt=False)
        return decision._replace(reasons=np.zeros(len(snapshot), dtype=np.int8))


@dataclass(frozen=True)
class ChangesColumns(Base):
    name: ClassVar[str] = "changes-columns"

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = admit(snapshot, preempt=False)
        weights = snapshot.weight
        owner: Any = weights if weights.base is None else weights.base
        owner.flags.writeable = True
        owner *= 1.0 + 1e-3
        return decision


@dataclass(frozen=True)
class ChangesMemory(Base):
    name: ClassVar[str] = "changes-memory"

    def decide(self, snapshot: Snapshot) -> Decision:
        known: Any = snapshot.memory
        memory = {"turns": known.get("turns", 0) + 1, "seen": known.get("seen", [])}
        memory["seen"].append(len(snapshot))
        return admit(snapshot, preempt=False).remembering(memory)


@dataclass(frozen=True)
class GlobalRandom(Base):
    name: ClassVar[str] = "global-random"

    def decide(self, snapshot: Snapshot) -> Decision:
        key = np.array([random.random() for _ in range(len(snapshot))])
        return admit(snapshot, key, preempt=True)


@dataclass(frozen=True)
class HashOrder(Base):
    name: ClassVar[str] = "hash-order"

    def decide(self, snapshot: Snapshot) -> Decision:
        order = list({f"job {job}" for job in snapshot.jobs.tolist()})
        key = np.array([float(order.index(f"job {job}")) for job in snapshot.jobs.tolist()])
        return admit(snapshot, key, preempt=False)


@dataclass(frozen=True)
class ByName(Base):
    name: ClassVar[str] = "by-name"

    def decide(self, snapshot: Snapshot) -> Decision:
        ids = [snapshot.job(row).id for row in range(len(snapshot))]
        rank = {name: float(at) for at, name in enumerate(sorted(ids))}
        return admit(snapshot, np.array([rank[name] for name in ids]), preempt=True)


@dataclass(frozen=True)
class StopsProtected(Base):
    name: ClassVar[str] = "stops-protected"

    def decide(self, snapshot: Snapshot) -> Decision:
        if not len(snapshot) or len(snapshot.protected_rows) < 1 or len(snapshot) < 2:
            return admit(snapshot, preempt=False)
        return admit(snapshot, preempt=False).without(snapshot.protected_rows.tolist())


@dataclass(frozen=True)
class WakesInThePast(Base):
    name: ClassVar[str] = "wakes-in-the-past"

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, preempt=False).waking(snapshot.now_s)


@dataclass(frozen=True)
class PeeksAtTheFuture(Base):
    name: ClassVar[str] = "peeks-at-the-future"

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, snapshot.oracle.remaining_s, preempt=True)


@dataclass(frozen=True)
class HiddenCounter(Base):
    name: ClassVar[str] = "hidden-counter"

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", [])

    def decide(self, snapshot: Snapshot) -> Decision:
        calls: list[int] = self.__dict__["calls"]
        calls.append(1)
        return admit(snapshot, -snapshot.jobs if len(calls) % 2 else snapshot.jobs, preempt=True)


@dataclass(frozen=True)
class Starves(Base):
    """Never starts jobs of three GPUs."""

    name: ClassVar[str] = "starves"

    def decide(self, snapshot: Snapshot) -> Decision:
        odd = (snapshot.gpus == 3) & (snapshot.held == 0)
        return admit(snapshot, preempt=False).without(odd.nonzero()[0].tolist())


@dataclass(frozen=True)
class Restless(Base):
    """Asks to be woken at once, for ever."""

    name: ClassVar[str] = "restless"

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, preempt=False).waking(snapshot.now_s + 1e-6)


@dataclass(frozen=True)
class Ages(Base):
    """The longest wait for each second of service goes first, but it acts only when something else happens."""

    name: ClassVar[str] = "ages"

    def decide(self, snapshot: Snapshot) -> Decision:
        waited_s = snapshot.now_s - snapshot.submitted_s - snapshot.attained_s
        return admit(snapshot, -waited_s / (snapshot.attained_s + 60.0), preempt=True)


@dataclass(frozen=True)
class Overtakes(Base):
    """Promises to be strict, and skips gangs that do not fit."""

    name: ClassVar[str] = "overtakes"
    serves_in: ClassVar[Order] = Order("strictly in the order of submission", submission, strict=True)


@dataclass(frozen=True)
class LargestFirst(Base):
    """Promises small gangs first, and serves large ones first."""

    name: ClassVar[str] = "largest-first"
    serves_in: ClassVar[Order] = Order("fewest GPUs first", lambda snapshot: snapshot.gpus)

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, -snapshot.gpus, preempt=False)


@dataclass(frozen=True)
class NeverPreempts(Base):
    """Promises that running jobs give way to smaller ones, and leaves them alone."""

    name: ClassVar[str] = "never-preempts"
    serves_in: ClassVar[Order] = Order("fewest GPUs first", lambda snapshot: snapshot.gpus, preempts=True)

    def decide(self, snapshot: Snapshot) -> Decision:
        return admit(snapshot, snapshot.gpus, preempt=False)


BROKEN: dict[type[Base], str] = {
    GrantsTooMuch: "are granted; the",
    SplitsGangs: "fewer GPUs than its gang needs",
    ForgetsReasons: "waits without a reason",
    ChangesColumns: "changes the snapshot",
    ChangesMemory: "changes the snapshot",
    GlobalRandom: "differs",
    HashOrder: "PYTHONHASHSEED",
    ByName: "other names",
    StopsProtected: "started a moment ago",
    WakesInThePast: "is not after",
    PeeksAtTheFuture: "does not declare",
    HiddenCounter: "differs the second time",
    Starves: "never finished",
    Restless: "does not come to an end",
    Ages: "asks for no wake-up",
    Overtakes: "it promises 'strictly in the order of submission', but at",
    LargestFirst: "it promises 'fewest GPUs first', but at",
    NeverPreempts: "it promises 'fewest GPUs first', but at",
}
