"""Rates of jobs whose batch size a scheduler may choose, by the model of step times and gradient noise that they carry.

Such a job runs at its usual rate on the gang and with the batch that its owner chose. Elsewhere it is as many times
faster as its goodput is larger. Each stretch of its work with another noise scale is a regime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairway.core.batch import BatchLimits, Split, Timing, Tuning
from fairway.core.job import JobSpec, Regime
from fairway.models.goodput import goodput
from fairway.models.step_time import StepModel, gradient_s, step_s
from fairway.simulator.rates import Rates


@dataclass(frozen=True, slots=True)
class NoiseRegime(Regime):
    """A stretch of training in which the gradients have one noise scale."""

    noise: float = 0.0


class TunedRates(Rates):
    """Rates by goodput for jobs that carry a `Tuning`; other jobs as usual."""

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self._stretches: dict[Tuning, tuple[Regime, ...]] = {}
        self._goodputs: dict[tuple[object, ...], float] = {}

    def regimes(self, spec: JobSpec) -> tuple[Regime, ...]:
        """The stretches of the work with one noise scale each."""
        tuning = spec.tuning
        if tuning is None:
            return super().regimes(spec)
        found = self._stretches.get(tuning)
        if found is None:
            found = tuple(NoiseRegime(until, noise=scale) for until, scale in tuning.noise)
            self._stretches[tuning] = found
        return found

    def limits(self, spec: JobSpec) -> BatchLimits | None:
        """Those of the job."""
        return None if spec.tuning is None else spec.tuning.limits

    def rate_split(
        self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool, split: Split
    ) -> float:
        """The rate on the own gang, times how much larger the goodput is here."""
        tuning = spec.tuning
        if tuning is None or not isinstance(regime, NoiseRegime):
            return self.rate_in(spec, regime, kind, gpus, located)
        own = tuning.limits.split(spec.global_batch or tuning.first_batch, spec.gpus)
        usual = self._goodput(tuning, regime.noise, self.cluster.nodes_needed(kind, spec.gpus), spec.gpus, own)
        here = self._goodput(tuning, regime.noise, self._nodes(kind, gpus, located), len(gpus), split)
        return self.speeds_in(spec, regime)[kind] * here / usual

    def measured(
        self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool, split: Split
    ) -> tuple[Timing, float]:
        """The time of a pass that updates weights, that of one that does not, and the noise scale."""
        tuning = spec.tuning
        if tuning is None or not isinstance(regime, NoiseRegime):
            return super().measured(spec, regime, kind, gpus, located, split)
        model, nodes = StepModel(*tuning.step_times), self._nodes(kind, gpus, located)
        slower = self.reference_speed(spec) / self.cluster.types[kind].speed
        took_s = slower * float(step_s(model, nodes, len(gpus), split.local))
        timing = Timing(nodes, len(gpus), split.local, 0, took_s, slower * float(gradient_s(model, split.local)))
        return timing, regime.noise

    def _nodes(self, kind: int, gpus: tuple[int, ...], located: bool) -> int:
        if located and self.spread_matters:
            return len({self.cluster.node_of_gpu[gpu] for gpu in gpus})
        return self.cluster.nodes_needed(kind, len(gpus))

    def _goodput(self, tuning: Tuning, noise: float, nodes: int, gpus: int, split: Split) -> float:
        key = (tuning, noise, nodes, gpus, split)
        found = self._goodputs.get(key)
        if found is None:
            model = StepModel(*tuning.step_times)
            found = float(goodput(model, noise, tuning.first_batch, nodes, gpus, split.local, split.accumulation))
            self._goodputs[key] = found
        return found
