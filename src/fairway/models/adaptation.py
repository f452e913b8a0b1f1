"""Batch sizes that jobs change by themselves, as in the artifact of Shockwave (Zheng et al., NSDI 2023).

There are two methods. *Accordion* (Agarwal et al., MLSys 2021) trains with its first batch size in critical regimes and
with the largest one elsewhere. *GNS* doubles the batch size as the gradient noise scale grows. The artifact has each of
them twice, and they differ. The *profile* lays down a batch size for every epoch; it gives a job's exclusive run time,
with which its completion time is compared. In the *simulated* run a job asks at the end of a round for another batch
size, judging by the epochs that it has done.

The figures below (sizes of data sets, critical regimes, epochs of the doublings) are those of that artifact. For other
models `models.courses` has a general rule.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import cache, cached_property
from itertools import groupby, pairwise

from fairway.core.job import Adaptation, JobSpec
from fairway.models.names import ModelNames

EPOCH_SAMPLES = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
    "A3C": 4,
    "CycleGAN": 6_287,
}
"""The samples of one epoch: CIFAR-10, ImageNet (a part of it), Multi30k, Wikitext-2, ML-20M, Pong, monet2photo."""

LARGEST_BATCH = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
"""How far a batch may grow; the other models keep theirs."""

EARLY_PART = 0.3
"""In the profile Accordion keeps the first batch size for this part of the epochs."""

DOUBLINGS: dict[str, dict[int, dict[int, tuple[int, ...]]]] = {
    "ResNet-18": {
        16: {1: (31, 41, 51, 71), 2: (21, 31, 91, 111), 4: (11, 21, 81, 91)},
        32: {1: (21, 31, 51), 2: (11, 21, 41), 4: (21, 31, 61)},
        64: {1: (11, 31), 2: (21, 41), 4: (11, 61)},
        128: {1: (11,), 2: (41,), 4: (11,)},
    },
    "ResNet-50": {
        32: {2: (101, 111), 4: (131, 221)},
        64: {1: (101,), 2: (81,), 4: (191,)},
    },
    "LM": {
        5: {1: (31, 41, 61, 71), 2: (31, 51, 61, 71), 4: (11, 31, 71, 91)},
        10: {1: (11, 21, 41), 2: (11, 31, 41), 4: (11, 31, 61)},
        20: {1: (11, 41), 2: (31, 41), 4: (11, 61)},
        40: {1: (11,), 2: (11,), 4: (61,)},
    },
    "Recommendation": {
        512: {1: (21, 41, 71, 91)},
        1024: {1: (21, 51, 91)},
        2048: {1: (21, 41)},
        4096: {1: (41,)},
    },
}
"""GNS: by first batch size and gang, the epochs (from 0) in which the batch size doubles. Gangs of 8 never do."""

_RECOMMENDATION_CRITICAL = {512: 30, 1024: 30, 2048: 40}
_NAMES = ModelNames(EPOCH_SAMPLES)


class AdaptationCourse:
    """How one kind of job (model, method, first batch size and gang) goes through its epochs."""

    def __init__(self, model: str, method: Adaptation, batch_size: int, gpus: int) -> None:
        self.model = model
        self.method = method
        self.batch_size = batch_size
        self.samples = EPOCH_SAMPLES[model]
        self.largest = LARGEST_BATCH.get(model, 0)
        self.doublings = DOUBLINGS.get(model, {}).get(batch_size, {}).get(gpus, ()) if method == "gns" else ()

    @cached_property
    def adapts(self) -> bool:
        """Whether the batch size may ever change."""
        return bool(self.doublings) or (self.method == "accordion" and self.largest > self.batch_size)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Whole steps of one epoch."""
        return -(-self.samples // batch_size)

    def epochs(self, steps: float) -> int:
        """The epochs of a job that has this many steps at its first batch size."""
        return math.ceil(steps / self.steps_per_epoch(self.batch_size))

    def profile(self, steps: float) -> list[tuple[int, int]]:
        """The batch sizes of the artifact's profile and for how many epochs each is used in all."""
        runs, counts = self.stretches(self.epochs(steps)), dict[int, int]()
        if len(runs) > 2 and self.doublings:
            # The artifact's tables leave the last epoch at the first batch size once there are two doublings.
            runs[-1] = (runs[-1][0], runs[-1][1] - 1)
            runs.append((self.batch_size, 1))
        for batch_size, many in runs:
            if many:
                counts[batch_size] = counts.get(batch_size, 0) + many
        return list(counts.items())

    def stretches(self, epochs: int) -> list[tuple[int, int]]:
        """The batch sizes of the profile, in their order, and for how many epochs in a row each is used."""
        if self.doublings:
            return self._doubled(epochs)
        if not self.adapts:
            return [(self.batch_size, epochs)]
        small = [epoch <= EARLY_PART * epochs or self.critical(epoch, profile=True) for epoch in range(epochs)]
        return self._alternated(small)

    def requested(self, epochs: int) -> list[tuple[int, int]]:
        """The same for a job that asks for its batch sizes as it goes (see `wanted`)."""
        if self.doublings or not self.adapts:
            return self.stretches(epochs)
        return self._alternated([self.critical(epoch) for epoch in range(epochs)])

    def _doubled(self, epochs: int) -> list[tuple[int, int]]:
        starts = [0, *(start for start in self.doublings if start < epochs), epochs]
        return [(self.batch_size << turn, until - since) for turn, (since, until) in enumerate(pairwise(starts))]

    def _alternated(self, small: list[bool]) -> list[tuple[int, int]]:
        runs = ((one, len(list(many))) for one, many in groupby(small))
        return [(self.batch_size if one else self.largest, many) for one, many in runs]

    def critical(self, epoch: int, *, profile: bool = False) -> bool:
        """Whether Accordion finds an epoch critical; the profile knows two more such stretches of Recommendation."""
        if self.model == "ResNet-18":
            early = 20 if self.batch_size == 256 else 10
            return epoch < early or 150 <= epoch < 160 or 250 <= epoch < 260
        if self.model == "ResNet-50":
            return epoch % 30 < 10
        if self.model == "LM":
            return epoch < 10
        late = profile and (60 <= epoch < 70 or 80 <= epoch < 90)
        return epoch < _RECOMMENDATION_CRITICAL.get(self.batch_size, 10) or late

    def wanted(self, batch_size: int, steps_done: float) -> int:
        """The batch size that a job asks for after this many steps at the present one; the present one if none."""
        epoch = math.ceil(steps_done / self.steps_per_epoch(batch_size))
        if self.doublings:
            # It looks one epoch ahead, and asks for one doubling at a time.
            due = bisect_right(self.doublings, epoch + 1)
            grows = self.batch_size << due > batch_size and 2 * batch_size <= self.largest
            return 2 * batch_size if grows else batch_size
        return self.batch_size if self.critical(epoch) else self.largest

    def rescaled(self, work: float, done: float, old: int, new: int) -> tuple[float, float]:
        """All steps and those done, counted at another batch size.

        The number of epochs stays the same; an epoch that was begun counts as done.
        """
        before, after = self.steps_per_epoch(old), self.steps_per_epoch(new)
        epochs, rescaled = math.ceil(work / before), math.ceil(work * old / new)
        if math.ceil(rescaled / after) != epochs:
            rescaled = epochs * after
        return float(rescaled), float(math.ceil(done / before) * after)


@cache
def _course(model: str, method: Adaptation, batch_size: int, gpus: int) -> AdaptationCourse | None:
    name = _NAMES.find(model)
    return None if name is None else AdaptationCourse(name, method, batch_size, gpus)


def course_of(spec: JobSpec) -> AdaptationCourse | None:
    """How a job goes through its epochs; None if its model is unknown or it does not count steps."""
    if spec.steps is None or not spec.batch_size or not spec.model:
        return None
    return _course(spec.model, spec.adaptation, spec.batch_size, spec.gpus)
