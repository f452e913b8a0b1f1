"""The parts of a simulation that the rules choose: how fast jobs run, and which engine runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.job import JobSpec
from fairway.models.pollux_profile import PolluxProfile
from fairway.models.profile import Profile
from fairway.simulator.engine import SimulatedEngine
from fairway.simulator.job_engine import EngineOptions, JobEngine
from fairway.simulator.rates import Rates
from fairway.simulator.rules import Rules
from fairway.simulator.tuned import TunedRates

_FINEST_S = 1e-3


def rates_of(
    rules: Rules, cluster: Cluster, profile: Profile, jobs: Sequence[JobSpec], *, whole_gangs: bool = True
) -> Rates:
    """How fast jobs run under these rules. Rules with epochs need a profile with epochs, unless no job counts steps."""
    if rules.progress == "epochs":
        if isinstance(profile, PolluxProfile):
            from fairway.published.epochs import EpochRates

            return EpochRates(cluster, profile, spread_matters=rules.spread_matters, slowdowns=rules.slowdowns)
        if any(job.steps is not None for job in jobs):
            wanted = "a directory of applications with validation-*.csv files (--profile DIR)"
            raise InputError(f"the {rules.name} rules train in epochs: they need {wanted}, not {profile.name}")
    tuned = rules.adapts == "regimes" and any(job.tuning is not None for job in jobs)
    kind = TunedRates if tuned else Rates
    about: dict[str, Any] = {"spread_matters": rules.spread_matters, "adapts": rules.adapts}
    return kind(cluster, profile, **about, whole_gangs=whole_gangs)


def runs_queues(rules: Rules) -> bool:
    """Whether jobs may run as tasks under these rules: those of published simulators, with rounds, epochs or a clock of
    whole seconds, are for gangs."""
    whole = rules.frees_gpus == "at_round_end" or rules.time_quantum_s > _FINEST_S
    return rules.rounds == "clock" and rules.progress == "rate" and not whole


def engine_of(
    cluster: Cluster, jobs: Sequence[JobSpec], rates: Rates, rules: Rules, **about: Unpack[EngineOptions]
) -> tuple[JobEngine[Any], float]:
    """The engine that a rule set asks for, and the length of the loop's own rounds: 0 if the engine makes rounds."""
    if rules.rounds == "whole_steps":
        from fairway.published.rounds import RoundEngine

        return RoundEngine(cluster, jobs, rates, rules, **about), 0.0
    return SimulatedEngine(cluster, jobs, rates, rules, **about), about.get("round_s", 0.0)
