"""What the policies of the Gavel family have in common: they plan shares, and one mechanism carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fairway.core.arrays import Floats
from fairway.core.decision import Decision
from fairway.core.snapshot import Snapshot
from fairway.models.estimator import LearnedPairs
from fairway.policies.gavel.pairs import noted_start, paired
from fairway.policies.gavel.shares import Style, decide_by_shares
from fairway.policies.gavel.situation import Shares, Situation
from fairway.policies.gavel.throughputs import PlanOutcome, Throughputs
from fairway.policies.registry import check_native


@dataclass(frozen=True)
class SharePolicy:
    """A policy that answers with fractions of time, and leaves the rounds to the mechanism.

    With `published`, plans are made and carried out as in the public simulators (see `fairway.published.gavel`).
    """

    published: bool = False

    name: ClassVar[str] = ""
    knows: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0
    published_if: ClassVar[Mapping[str, tuple[Any, ...]]] = {"published": (True,)}

    def __post_init__(self) -> None:
        check_native(self)

    def plan(self, situation: Situation) -> Shares:
        """The fractions of time that each job shall have."""
        raise NotImplementedError

    @property
    def style(self) -> Style:
        """How the mechanism carries the plan out."""
        return Style()

    def decide(self, snapshot: Snapshot) -> Decision:
        """Plan if it is time to, then choose the jobs of this round."""
        return decide_by_shares(snapshot, self.plan, self.style)


Heterogeneity = Literal["aware", "agnostic"]


@dataclass(frozen=True)
class PlanningPolicy(SharePolicy):
    """A policy that plans by a program over effective throughputs.

    `heterogeneity=agnostic` treats all GPU types that a job can use as equal. `packing` lets two jobs share GPUs. How
    they slow each other down comes from the profile, or (`pairs=learned`) is estimated and measured as they run.
    """

    heterogeneity: Heterogeneity = "aware"
    packing: bool = False
    pairs: Literal["profile", "learned"] = "profile"

    oracles: ClassVar[frozenset[str]] = frozenset()
    """What the program needs besides speeds."""
    programs: ClassVar[type[Throughputs]] = Throughputs
    """Where programs without pairs are built and solved."""

    @property
    def knows(self) -> frozenset[str]:  # type: ignore[override]
        """The oracles of the program and, with packing, how pairs of jobs slow each other down."""
        return self.oracles | {"pairs"} if self.packing and self.pairs == "profile" else self.oracles

    def decide(self, snapshot: Snapshot) -> Decision:
        """Plan if it is time to, then choose the jobs of this round."""
        return self.decided(snapshot)

    def decided(self, snapshot: Snapshot, *, replan: bool = False) -> Decision:
        """A decision. Where no profile is trusted, it learns from the pairs that run. `replan` asks for a new plan."""
        if not self.packing or self.pairs == "profile":
            return decide_by_shares(snapshot, self.plan, self.style, replan=replan)
        known = LearnedPairs.recall(snapshot.memory.get("pairs"))
        before = known.memory()["kept"]
        learned = known.observe(snapshot)
        news = learned.memory()["kept"] != before

        def plan(situation: Situation) -> Shares:
            return self.plan(replace(situation, learned=learned))

        decision = decide_by_shares(snapshot, plan, self.style, replan=replan or news)
        learned.expect(snapshot, decision.partners)
        return decision.remembering({**decision.memory, "pairs": learned.memory()})

    def throughputs(self, situation: Situation) -> Throughputs:
        """The speeds with which the policy plans."""
        rates = situation.rates if self.heterogeneity == "aware" else self.agnostic_rates(situation)
        if self.packing:
            return paired(situation, rates)
        return self.programs.alone(rates, situation.gangs, situation.capacity)

    def agnostic_rates(self, situation: Situation) -> Floats:
        """What an agnostic policy uses as speeds: the same on every type that a job can use."""
        return usable(situation)

    def shares(self, throughputs: Throughputs, outcome: PlanOutcome) -> Shares:
        """An outcome as shares; an equal split if the solver found none."""
        if not outcome.optimal:
            return Shares(throughputs.even())
        some = outcome.pair_x.any(axis=1)
        notes = noted_start(throughputs, outcome)
        return Shares(outcome.x, outcome.pairs[some], outcome.pair_x[some], notes)


def usable(situation: Situation) -> Floats:
    """1 where a job can run now, otherwise 0: what an agnostic policy sees of speeds."""
    return np.asarray((situation.rates > 0).astype(np.float64))
