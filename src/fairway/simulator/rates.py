"""How fast a simulated job runs on given GPUs.

A job whose work is a duration runs at rate 1 on the gang that it asks for. On another GPU type the rate is scaled by
the relative speed of the types. The trace is assumed to be recorded on the cluster's first type, or on the first type
that the job names. A job whose work is steps runs as fast as the profile says. An elastic job on k instead of g GPUs
runs as the profile says, or without a profile k/g to the power 0.9 times as fast, a usual data-parallel efficiency.

Work is done in *regimes*, stretches at one speed. Most jobs have only one. In `published.epochs` every epoch is a
regime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from fairway.core import portable
from fairway.core.batch import BatchLimits, LocalLimits, Split, Timing
from fairway.core.cluster import Cluster
from fairway.core.errors import EngineError, InputError
from fairway.core.hardware import known_gpu
from fairway.core.job import JobSpec, Regime
from fairway.core.prospect import Prospect, Stage
from fairway.models.adaptation import AdaptationCourse, course_of
from fairway.models.courses import epochs_of, laid_down
from fairway.models.profile import Profile, ProfileKey

ELASTIC_EXPONENT = 0.9
MINI_BATCH_S = 0.6
"""Length of a mini-batch if a log does not give it: a hundred of them make the minute of Gandiva's quantum."""
PAIR_SPEED = 0.55
"""Speed of each of two packed jobs if no profile knows the pair: together a little more than one alone."""
_ONE_REGIME = (Regime(1.0),)

Adapts = Literal["never", "regimes", "requests"]


class Rates:
    """Rates of jobs on a cluster, cached by what they depend on. `adapts` is that of the rules.

    `whole_gangs` says whether a job needs its whole gang on one GPU type, or runs as tasks on any number of GPUs.
    """

    def __init__(
        self,
        cluster: Cluster,
        profile: Profile,
        *,
        spread_matters: bool,
        adapts: Adapts = "never",
        whole_gangs: bool = True,
    ) -> None:
        self.cluster = cluster
        self.profile = profile
        self.spread_matters = spread_matters
        self.adapts = adapts
        self.whole_gangs = whole_gangs
        self._computes: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._speeds: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._regimes: dict[tuple[object, ...], tuple[Regime, ...]] = {}
        self._flat = (1.0,)
        self._flat_gpus = cluster.gpu_count if len(cluster.types) == 1 else 0

    def speeds(self, spec: JobSpec, batch_size: int | None) -> tuple[float, ...]:
        """The job's rate on its own gang for each GPU type; 0 where it may not or cannot run."""
        if spec.steps is None and not spec.gpu_types and not spec.memory_bytes and spec.gpus <= self._flat_gpus:
            return self._flat
        key = (spec.steps is None, spec.model, batch_size, spec.gpus, spec.gpu_types, spec.memory_bytes)
        found = self._speeds.get(key)
        if found is None:
            kinds = range(len(self.cluster.types))
            found = tuple(self._speed(spec, batch_size, kind) for kind in kinds)
            self._speeds[key] = found
        return found

    def regime_speeds(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """The speeds in one regime, in units of the job's work: steps of its first batch size, or seconds."""
        if spec.steps is not None and regime.batch_size and spec.batch_size:
            grown = regime.batch_size / spec.batch_size * regime.speed
            return tuple(speed * grown for speed in self.speeds(spec, regime.batch_size))
        speeds = self.speeds(spec, spec.batch_size)
        return speeds if regime.speed == 1.0 else tuple(speed * regime.speed for speed in speeds)

    def work(self, spec: JobSpec) -> float:
        """How much a job has to do, in its own units."""
        work = spec.steps if spec.steps is not None else spec.duration_s
        if work is None:
            raise EngineError(f"job {spec.id!r} has no work")
        return work

    def regimes(self, spec: JobSpec) -> tuple[Regime, ...]:
        """The stretches in which a job does its work; at least one.

        If they are not given, they follow from how the job adapts, under rules that say so.
        """
        if spec.regimes or spec.adaptation in ("none", "tuned") or self.adapts != "regimes":
            return spec.regimes or _ONE_REGIME
        key = (spec.model, spec.adaptation, spec.batch_size, spec.steps, spec.gpus, spec.gpu_types, spec.memory_bytes)
        found = self._regimes.get(key)
        if found is None:
            found = self._regimes[key] = laid_down(spec, lambda batch_size: self._fits(spec, batch_size))
        return found

    def known_speeds(self, spec: JobSpec, batch_size: int) -> tuple[float, ...]:
        """The job's speeds at another batch size; empty if the profile does not know it."""
        try:
            return self.speeds(spec, batch_size)
        except InputError:
            return ()

    def _fits(self, spec: JobSpec, batch_size: int) -> bool:
        """Whether a job fits at a batch size on all types where it can begin: scripts check memory before they grow."""
        grown = self.known_speeds(spec, batch_size)
        if not grown:
            return False
        return all(now > 0 for now, first in zip(grown, self.speeds(spec, spec.batch_size), strict=True) if first > 0)

    def prospect(self, spec: JobSpec) -> Prospect:
        """What the job's owner can say of its training: epochs, and batch sizes in their order with their speeds."""
        course = course_of(spec) if self.adapts == "requests" and not spec.regimes else None
        if course is not None and course.adapts and spec.steps is not None:
            epochs = course.epochs(spec.steps)
            return Prospect(float(epochs), self._requested_stages(spec, course, epochs))
        whole, work = epochs_of(spec), self.work(spec)
        per_s = whole / work if work > 0 else 0.0
        stages = (
            Stage(
                regime.batch_size or spec.batch_size or 0,
                tuple(speed * per_s for speed in self.speeds_in(spec, regime)),
            )
            for regime in self.regimes(spec)
        )
        return Prospect(whole, tuple(stages))

    def _requested_stages(self, spec: JobSpec, course: AdaptationCourse, epochs: int) -> tuple[Stage, ...]:
        """The stages of a job that asks for its batch sizes. It keeps its size if the next one cannot be granted."""
        stages: list[Stage] = []
        for batch, _ in course.requested(epochs):
            speeds = self.known_speeds(spec, batch)
            if not any(speeds):
                break
            per_s = batch / course.samples
            stages.append(Stage(batch, tuple(speed * per_s for speed in speeds)))
        return tuple(stages)

    def speeds_in(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """The job's rate on its own gang by GPU type, in one of its regimes."""
        if self._scales(spec):
            return self.regime_speeds(spec, regime)
        return self.speeds(spec, regime.batch_size or spec.batch_size)

    def _scales(self, spec: JobSpec) -> bool:
        """Whether the work of all regimes has one unit, so that a step of a larger batch does more of it."""
        return bool(spec.regimes) or self.adapts == "regimes"

    def rate_in(self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool) -> float:
        """The rate on concrete GPUs of one type, in one of the job's regimes."""
        batch_size = regime.batch_size or spec.batch_size
        rate = self.rate(spec, batch_size, kind, gpus, located)
        if self._scales(spec):
            own = self.speeds(spec, batch_size)[kind]
            rate *= self.regime_speeds(spec, regime)[kind] / own if own else 0.0
        return rate

    def rounds(self, spec: JobSpec) -> float:
        """The steps that the gang of a job does together. If a log gives only times, a step counts as 0.6 s."""
        return self.work(spec) / (spec.gpus if spec.steps is not None else MINI_BATCH_S)

    def computes(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """What part of a step a GPU of the job's gang computes, by GPU type. The rest of it, the gang synchronises."""
        if spec.gpus == 1:
            return (1.0,) * len(self.cluster.types)
        key = (spec.model, spec.steps is None, spec.gpus, spec.batch_size, regime.batch_size, spec.gpu_types)
        found = self._computes.get(key)
        if found is None:
            kinds = range(len(self.cluster.types))
            found = self._computes[key] = tuple(self._computing(spec, regime, kind) for kind in kinds)
        return found

    def _computing(self, spec: JobSpec, regime: Regime, kind: int) -> float:
        together = self.rate_in(spec, regime, kind, tuple(range(spec.gpus)), False)
        alone = self.rate_in(spec, regime, kind, (0,), False)
        return min(together / (spec.gpus * alone), 1.0) if alone > 0 else 1.0

    def timed(self, spec: JobSpec) -> bool:
        """Whether the profile knows a job on some GPU type of the cluster, where that can be told."""
        return True

    def limits(self, spec: JobSpec) -> BatchLimits | None:
        """What batch sizes a scheduler may choose for a job; None for a job that it may not adapt."""
        return None

    def local_limits(self, spec: JobSpec) -> LocalLimits:
        """What mini-batches are possible on GPU types where they are not those of the limits."""
        return ()

    def rate_split(
        self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool, split: Split
    ) -> float:
        """The rate on concrete GPUs with a batch that a scheduler has chosen."""
        return self.rate_in(spec, regime, kind, gpus, located)

    def measured(
        self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool, split: Split
    ) -> tuple[Timing, float]:
        """What a job that can be adapted measures while it trains: a timing, and the noise scale of its gradients."""
        raise EngineError(f"job {spec.id!r} measures nothing")

    def tail_s(self, spec: JobSpec, regime: Regime, work: float) -> float:
        """How long the regimes after this one will take on the best GPU type."""
        total_s, start = 0.0, regime.until
        for later in self.regimes(spec):
            if later.until > start:
                share = later.until - start
                total_s += share * work / max(self.regime_speeds(spec, later))
                start = later.until
        return total_s

    def alone_s(self, spec: JobSpec) -> float:
        """How long a job takes without interruption on its own gang, on the best GPU type.

        If batch sizes adapt, that is the time of all its epochs, each at the batch size of that epoch.
        """
        epochs_s = self._epochs_s(spec) if self.adapts == "requests" and not spec.regimes else 0.0
        if epochs_s:
            return epochs_s
        first, work = self.regimes(spec)[0], self.work(spec)
        return first.until * work / max(self.speeds_in(spec, first)) + self.tail_s(spec, first, work)

    def _epochs_s(self, spec: JobSpec) -> float:
        """The time of all epochs of a job; 0 if its model or one of the batch sizes is not known."""
        course, total_s = course_of(spec), 0.0
        if course is None or spec.steps is None:
            return 0.0
        for batch_size, epochs in course.profile(spec.steps):
            speed = max(self.known_speeds(spec, batch_size), default=0.0)
            if not speed:
                return 0.0
            total_s += epochs * (course.samples / batch_size) / speed
        return total_s

    def steps_left(self, spec: JobSpec, regime: Regime) -> float:
        """The steps that are left in a regime, for jobs whose steps are not their progress; else NaN."""
        return math.nan

    def counted_s(self, regime: Regime, since_s: float, until_s: float) -> float:
        """The instant that counts as the end of a regime that begins at `since_s` and is done at `until_s`."""
        return until_s

    def rate(self, spec: JobSpec, batch_size: int | None, kind: int, gpus: Sequence[int], located: bool) -> float:
        """The rate on concrete GPUs of one type."""
        count = len(gpus)
        rate = self.speeds(spec, batch_size)[kind]
        if count == spec.gpus and spec.steps is None:
            return rate
        if count != spec.gpus:
            rate *= self._scaling(spec, batch_size, kind, count)
        if spec.steps is not None and located and self.spread_matters and count > 1:
            nodes = len({self.cluster.node_of_gpu[gpu] for gpu in gpus})
            if nodes > self.cluster.nodes_needed(kind, count):
                name = self.cluster.types[kind].name
                together = self.profile.rate(spec.model, batch_size, name, count)
                apart = self.profile.rate(spec.model, batch_size, name, count, spread=True)
                rate *= apart / together if together else 1.0
        return rate

    def scaling(self, spec: JobSpec) -> tuple[float, ...]:
        """The rate on 1, 2, … up to `gpus_max` GPUs of the type that suits the job best, when it begins."""
        return self.scaling_in(spec, self.regimes(spec)[0])

    def scaling_in(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """The same in one of the job's regimes; empty if it is the same in all."""
        speeds, batch_size = self.speeds_in(spec, regime), regime.batch_size or spec.batch_size
        kind = max(range(len(speeds)), key=speeds.__getitem__)
        most = min(spec.gpus_max, int(self.cluster.gpus_by_type[kind]))
        return tuple(speeds[kind] * self._scaling(spec, batch_size, kind, n) for n in range(1, most + 1))

    def first_batches(self, spec: JobSpec, batches: int, work: float) -> float:
        """The work of a job's first mini-batches. If a log gives only times, a mini-batch counts as 0.6 s."""
        each = spec.gpus if spec.steps is not None else MINI_BATCH_S
        return float(min(batches * each, work))

    def pair_factors(
        self, a: JobSpec, b: JobSpec, batches: tuple[int | None, int | None], kind: int
    ) -> tuple[float, float]:
        """What two packed jobs keep of their speeds; 0 if they do not fit together."""
        if a.memory_bytes + b.memory_bytes > self.cluster.types[kind].memory_bytes > 0:
            return (0.0, 0.0)
        if a.steps is None or b.steps is None:
            return (PAIR_SPEED, PAIR_SPEED)
        name = self.cluster.types[kind].name
        gang = a.gpus if a.gpus == b.gpus else 1
        keys = [ProfileKey(s.model, batch, gang) for s, batch in zip((a, b), batches, strict=True)]
        pair = self.profile.pair_rates(keys[0], keys[1], name)
        if pair is None:
            return (0.0, 0.0)
        alone = [self.profile.rate(key.model, key.batch_size, name, key.gpus) for key in keys]
        return (pair[0] / alone[0] if alone[0] else 0.0, pair[1] / alone[1] if alone[1] else 0.0)

    def allowed(self, spec: JobSpec, kind: int) -> bool:
        """Whether a job may use a GPU type, and that type has the memory and the number of GPUs that it needs."""
        gpu = self.cluster.types[kind]
        if spec.gpu_types and not _matches(gpu.name, spec.gpu_types):
            return False
        large = self.whole_gangs and spec.gpus > self.cluster.gpus_by_type[kind]
        return not (spec.memory_bytes > gpu.memory_bytes > 0 or large)

    def _speed(self, spec: JobSpec, batch_size: int | None, kind: int) -> float:
        gpu = self.cluster.types[kind]
        if not self.allowed(spec, kind):
            return 0.0
        if spec.steps is not None:
            return self.profile.rate(spec.model, batch_size, gpu.name, spec.gpus)
        return gpu.speed / self.reference_speed(spec)

    def reference_speed(self, spec: JobSpec) -> float:
        """The speed of the GPU type on which the trace's duration was recorded."""
        for name in spec.gpu_types:
            for gpu in self.cluster.types:
                if _matches(gpu.name, (name,)):
                    return gpu.speed
        return self.cluster.types[0].speed

    def _scaling(self, spec: JobSpec, batch_size: int | None, kind: int, count: int) -> float:
        """Samples per second on `count` GPUs relative to those on the gang that the job asked for."""
        if spec.steps is None:
            return elastic_factor(count, spec.gpus)
        name = self.cluster.types[kind].name
        own = self.profile.rate(spec.model, batch_size, name, spec.gpus)
        return self.profile.rate(spec.model, batch_size, name, count) / own if own else 0.0


@lru_cache(maxsize=10_000)
def elastic_factor(count: int, gpus: int) -> float:
    """How many times as fast a job is on `count` GPUs as on `gpus`, without a profile."""
    return portable.power(count / gpus, ELASTIC_EXPONENT)


def _matches(name: str, wanted: tuple[str, ...]) -> bool:
    """Whether a GPU type is one of those that a job names, directly or by an alias."""
    if name in wanted:
        return True
    known = known_gpu(name)
    return known is not None and any(known_gpu(other) == known for other in wanted)


def impossible(spec: JobSpec, rates: Rates) -> str | None:
    """Why a job can never run on this cluster, or None."""
    most = int(max(rates.cluster.gpus_by_type))
    if spec.gpus > most and rates.whole_gangs:
        return f"its gang of {spec.gpus} GPUs is larger than the {most} GPUs of one type that there are"
    speeds = [rates.speeds(spec, spec.batch_size)]
    speeds += [rates.speeds_in(spec, regime) for regime in rates.regimes(spec)]
    if any(all(speed > 0 for speed in kind) for kind in zip(*speeds, strict=True)):
        return None
    if spec.gpu_types and not any(_matches(gpu.name, spec.gpu_types) for gpu in rates.cluster.types):
        wanted = " or ".join(spec.gpu_types)
        return f"it asks for {wanted}, which the cluster does not have (--any-type lets it run anywhere)"
    if not rates.timed(spec):
        return "the profile has no timings of it on any GPU type of the cluster"
    batch = f" (batch size {spec.batch_size} per GPU)" if spec.batch_size else ""
    return f"no GPU type of the cluster has the memory that it needs{batch} on as many GPUs as its gang of {spec.gpus}"
