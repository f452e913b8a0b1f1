"""Rates of jobs that train in epochs, as in the simulator of the Pollux artifact (OSDI 2021).

Work is *progress*: iterations that the application's smallest batch would need. Each epoch is a regime of its own. Its
gradient statistics say how much progress one iteration at the job's batch makes; the placement says how long an
iteration takes. An epoch lasts whole seconds. Jobs that only give a duration are treated as everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from fairway.core.batch import BatchLimits, LocalLimits, Split, Timing, limits_of
from fairway.core.cluster import Cluster
from fairway.core.job import JobSpec, Regime
from fairway.core.prospect import Prospect, Stage
from fairway.models.goodput import noise_scale
from fairway.models.pollux_profile import Application, PolluxProfile
from fairway.models.pollux_timings import Shape, packed_shape
from fairway.simulator.rates import Rates

_Asks = tuple[str, int | None, int | None, int, tuple[str, ...], int]
"""The values that the speed of a job on its own gang depends on."""


@dataclass(frozen=True, slots=True)
class Epoch(Regime):
    """One pass over the data, counted from 0."""

    number: int = 0


class EpochRates(Rates):
    """Goodput by epoch and by the shape of the placement."""

    def __init__(
        self,
        cluster: Cluster,
        profile: PolluxProfile,
        *,
        spread_matters: bool = True,
        slowdowns: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__(cluster, profile, spread_matters=spread_matters)
        self._curves = profile
        self._slowdowns = slowdowns
        self._epochs: dict[tuple[str, int | None], tuple[Epoch, ...]] = {}
        self._goodputs: dict[tuple[str, int, int, Shape], list[float]] = {}
        self._own: dict[_Asks, list[list[float]]] = {}
        self._tails: dict[_Asks, list[float]] = {}
        self._steps_left: dict[tuple[str, int], list[float]] = {}
        self._local: dict[str, dict[str, tuple[int, int]]] = {}
        self._limits: dict[str, BatchLimits] = {}
        sizes: dict[int, int] = {}
        for node, kind in zip(cluster.nodes, cluster.node_type, strict=True):
            sizes[kind] = max(node.gpus, sizes.get(kind, 0))
        self._node_gpus = sizes

    def work(self, spec: JobSpec) -> float:
        """Progress at the end of the last epoch."""
        return super().work(spec) if spec.steps is None else float(self._application(spec).ends[-1])

    def regimes(self, spec: JobSpec) -> tuple[Regime, ...]:
        """The epochs."""
        if spec.steps is None:
            return super().regimes(spec)
        key = (spec.model, spec.batch_size)
        found = self._epochs.get(key)
        if found is None:
            ends = self._application(spec).ends.tolist()
            found = tuple(Epoch(end / ends[-1], spec.batch_size, 1.0, number) for number, end in enumerate(ends))
            self._epochs[key] = found
        return found

    def speeds(self, spec: JobSpec, batch_size: int | None) -> tuple[float, ...]:
        """Goodput of the first epoch on the job's own gang, on as few nodes as possible, by GPU type."""
        if spec.steps is None:
            return super().speeds(spec, batch_size)
        return self.speeds_in(spec, self.regimes(spec)[0])

    def speeds_in(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """Goodput of an epoch on the job's own gang, on as few nodes as possible, by GPU type."""
        if not isinstance(regime, Epoch):
            return super().speeds_in(spec, regime)
        return tuple(goodputs[regime.number] for goodputs in self._own_goodputs(spec))

    def rate_in(self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool) -> float:
        """Goodput of an epoch on concrete GPUs."""
        if not isinstance(regime, Epoch):
            return super().rate_in(spec, regime, kind, gpus, located)
        return self._goodput(spec, kind, self._shape_of(kind, gpus, located))[regime.number]

    def timed(self, spec: JobSpec) -> bool:
        """Whether the application was timed on some GPU type of the cluster."""
        return spec.steps is None or bool(self._known_limits(spec))

    def limits(self, spec: JobSpec) -> BatchLimits | None:
        """Those of the application, with the mini-batches that were timed on every type."""
        if spec.steps is None or spec.adaptation != "tuned":
            return None
        found = self._limits.get(spec.model)
        if found is None:
            known, application = self._known_limits(spec).values(), self._application(spec)
            if not known:
                return None
            local = max(least for least, _ in known), min(most for _, most in known)
            batches = application.first_batch, int(application.batches[-1])
            found = self._limits[spec.model] = limits_of(*batches, *local, accumulation=True)
        return found

    def local_limits(self, spec: JobSpec) -> LocalLimits:
        """The mini-batches that were timed on each type; nothing where there is one type."""
        if len(self.cluster.types) == 1 or self.limits(spec) is None:
            return ()
        return tuple((name, least, most) for name, (least, most) in self._known_limits(spec).items())

    def rate_split(
        self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool, split: Split
    ) -> float:
        """Goodput of an epoch on concrete GPUs with a given batch."""
        timings = self._curves.timings(spec.model, self.cluster.types[kind].name)
        if not isinstance(regime, Epoch) or timings is None:
            return self.rate_in(spec, regime, kind, gpus, located)
        application = self._application(spec)
        gain = float(application.gains(split.batch(len(gpus)))[regime.number])
        goodput = gain / timings.iteration_s(self._shape_of(kind, gpus, located), split)
        return goodput / self._slowdowns.get(application.name, 1.0)

    def measured(
        self, spec: JobSpec, regime: Regime, kind: int, gpus: tuple[int, ...], located: bool, split: Split
    ) -> tuple[Timing, float]:
        """The time of a pass that updates weights, that of one that does not, and the noise scale of the epoch."""
        timings, application = self._curves.timings(spec.model, self.cluster.types[kind].name), self._application(spec)
        if not isinstance(regime, Epoch) or timings is None:
            return super().measured(spec, regime, kind, gpus, located, split)
        shape = self._shape_of(kind, gpus, located)
        step_s, sync_s = timings.pass_s(shape, split.local)
        sqr, var = application.statistics(split.batch(len(gpus)))
        noise = noise_scale(float(sqr[regime.number]), float(var[regime.number]), application.first_batch)
        return Timing(len(shape), len(gpus), split.local, 0, step_s, step_s - sync_s), float(noise)

    def tail_s(self, spec: JobSpec, regime: Regime, work: float) -> float:
        """How long the epochs after this one will take on the job's own gang, on the best GPU type."""
        if not isinstance(regime, Epoch):
            return super().tail_s(spec, regime, work)
        return self._lengths_from(spec)[regime.number + 1]

    def alone_s(self, spec: JobSpec) -> float:
        """The lengths of all epochs, each in whole seconds."""
        return super().alone_s(spec) if spec.steps is None else self._lengths_from(spec)[0]

    def steps_left(self, spec: JobSpec, regime: Regime) -> float:
        """Iterations of the epochs after this one at the job's batch, at least 1, for Optimus' oracle."""
        if not isinstance(regime, Epoch):
            return math.nan
        key = (spec.model, _batch(spec, self._application(spec)))
        found = self._steps_left.get(key)
        if found is None:
            done = self._application(spec).iterations(key[1])
            found = self._steps_left[key] = [max(1.0, float(done[-1] - each)) for each in done]
        return found[regime.number]

    def counted_s(self, regime: Regime, since_s: float, until_s: float) -> float:
        """An epoch lasts whole seconds."""
        return since_s + round(until_s - since_s) if isinstance(regime, Epoch) else until_s

    def scaling(self, spec: JobSpec) -> tuple[float, ...]:
        """Iterations per second on 1, 2, … GPUs on as few nodes as possible, of the type that suits the job best."""
        if spec.steps is None:
            return super().scaling(spec)
        speeds, application = self.speeds(spec, spec.batch_size), self._application(spec)
        kind = max(range(len(speeds)), key=speeds.__getitem__)
        timings = self._curves.timings(spec.model, self.cluster.types[kind].name)
        if timings is None:
            return ()
        batch, size = _batch(spec, application), self._node_gpus[kind]
        most = min(spec.gpus_max, int(self.cluster.gpus_by_type[kind]))
        splits = ((n, application.split(batch, n, timings)) for n in range(1, most + 1))
        return tuple(1.0 / timings.iteration_s(packed_shape(n, size), split) for n, split in splits)

    def scaling_in(self, spec: JobSpec, regime: Regime) -> tuple[float, ...]:
        """Empty: an iteration takes equally long in every epoch."""
        return super().scaling_in(spec, regime) if spec.steps is None else ()

    def prospect(self, spec: JobSpec) -> Prospect:
        """The epochs of the application, at one batch size and at their mean speed."""
        if spec.steps is None:
            return super().prospect(spec)
        epochs, ends = len(self.regimes(spec)), self._application(spec).ends.tolist()
        lengths = [end - start for start, end in zip([0.0, *ends], ends, strict=False)]
        per_s = tuple(_per_s(lengths, goodputs) for goodputs in self._own_goodputs(spec))
        return Prospect(float(epochs), (Stage(spec.batch_size or 0, per_s),))

    def first_batches(self, spec: JobSpec, batches: int, work: float) -> float:
        """The progress of a job's first iterations, at the gain of its first epoch."""
        if spec.steps is None:
            return super().first_batches(spec, batches, work)
        application = self._application(spec)
        return float(min(batches * application.gains(_batch(spec, application))[0], work))

    def _application(self, spec: JobSpec) -> Application:
        return self._curves.application(spec.model)

    def _known_limits(self, spec: JobSpec) -> dict[str, tuple[int, int]]:
        """The fewest and the most samples of a mini-batch by GPU type."""
        found = self._local.get(spec.model)
        if found is None:
            every = {gpu.name: self._application(spec).timings(gpu.name) for gpu in self.cluster.types}
            found = self._local[spec.model] = {
                name: (timings.least_local, timings.most_local)
                for name, timings in every.items()
                if timings is not None
            }
        return found

    def _shape_of(self, kind: int, gpus: tuple[int, ...], located: bool) -> Shape:
        """The shape of a placement; a packed one where positions do not matter."""
        return self._shape(gpus) if located and self.spread_matters else packed_shape(len(gpus), self._node_gpus[kind])

    def _shape(self, gpus: tuple[int, ...]) -> Shape:
        """GPUs per node in the order in which the nodes were taken."""
        node_of_gpu, counts = self.cluster.node_of_gpu, dict[int, int]()
        for gpu in gpus:
            node = node_of_gpu[gpu]
            counts[node] = counts.get(node, 0) + 1
        return tuple(counts.values())

    def _own_goodputs(self, spec: JobSpec) -> list[list[float]]:
        """The goodputs of all epochs on the job's own gang, for each GPU type; 0 on types that it may not use."""
        key = _asks(spec)
        found = self._own.get(key)
        if found is None:
            none = [0.0] * self._application(spec).epochs
            found = self._own[key] = [
                self._goodput(spec, kind, packed_shape(spec.gpus, size)) if self.allowed(spec, kind) else none
                for kind, size in sorted(self._node_gpus.items())
            ]
        return found

    def _goodput(self, spec: JobSpec, kind: int, shape: Shape) -> list[float]:
        """Progress per second in every epoch."""
        application = self._application(spec)
        key = (application.name, _batch(spec, application), kind, shape)
        found = self._goodputs.get(key)
        if found is None:
            timings = self._curves.timings(spec.model, self.cluster.types[kind].name)
            if timings is None:
                found = [0.0] * application.epochs
            else:
                gpus = sum(shape)
                split = application.split(key[1], gpus, timings)
                gains = application.gains(gpus * split.local * (split.accumulation + 1))
                slowdown = self._slowdowns.get(application.name, 1.0)
                found = (gains / timings.iteration_s(shape, split) / slowdown).tolist()
            self._goodputs[key] = found
        return found

    def _lengths_from(self, spec: JobSpec) -> list[float]:
        """For each epoch, how long it and the later ones take alone on the best GPU type; 0 after the last."""
        key = _asks(spec)
        found = self._tails.get(key)
        if found is None:
            best = [max(speeds) for speeds in zip(*self._own_goodputs(spec), strict=True)]
            ends = self._application(spec).ends.tolist()
            lengths = [
                round((end - start) / speed) if speed else math.inf
                for start, end, speed in zip([0.0, *ends], ends, best, strict=False)
            ]
            found = self._tails[key] = list(accumulate(reversed(lengths), initial=0.0))[::-1]
        return found


def _per_s(lengths: list[float], speeds: list[float]) -> float:
    """Epochs per second if all of them run one after the other; 0 if one of them cannot run."""
    taken_s = math.fsum(length / speed for length, speed in zip(lengths, speeds, strict=True)) if all(speeds) else 0.0
    return len(lengths) / taken_s if taken_s > 0 else 0.0


def _asks(spec: JobSpec) -> _Asks:
    return (spec.model, spec.batch_size, spec.global_batch, spec.gpus, spec.gpu_types, spec.memory_bytes)


def _batch(spec: JobSpec, application: Application) -> int:
    """The samples of one iteration over the whole gang, as the owner fixed them."""
    if spec.global_batch is not None:
        return spec.global_batch
    return application.first_batch if spec.batch_size is None else spec.batch_size * spec.gpus
