"""Batch sizes that a scheduler chooses: what a job allows, what it is given, and what it has measured.

A job may be adapted if it says within which limits (`BatchLimits`). A decision then gives it a `Split`, which makes its
batch size together with the GPUs that it gets. What a policy needs in order to choose one is what the job reports:
`Timing`s of its steps, and the noise scale of its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fairway.core.errors import InputError

MOST_TIMINGS = 256
"""How many timings of a job are remembered."""

LocalLimits: TypeAlias = tuple[tuple[str, int, int], ...]
"""GPU types, and the fewest and most samples of a replica and pass on each."""


class Split(NamedTuple):
    """How a gang works through a batch: samples per GPU and pass, and passes before the one that updates."""

    local: int
    accumulation: int = 0

    def batch(self, gpus: int) -> int:
        """The samples of one update of the weights.

        >>> Split(64, 1).batch(gpus=4)
        512
        """
        return gpus * self.local * (self.accumulation + 1)


class BatchLimits(NamedTuple):
    """What batch sizes a job may be given."""

    first: int
    """The batch size that its owner chose. It is never smaller."""
    largest: int
    """The largest batch size, 0 for no other than the first."""
    smallest_local: int = 1
    """The fewest samples of a replica and pass."""
    largest_local: int = 0
    """The most samples of a replica and pass, 0 for no limit of its own."""
    accumulation: bool = False
    """Whether a step may have several passes."""

    @property
    def most_gpus(self) -> int:
        """The most GPUs that its largest batch can feed."""
        return max((self.largest or self.first) // max(self.smallest_local, 1), 1)

    def split(self, batch: int, gpus: int) -> Split:
        """How a gang works through a batch without overfilling a GPU.

        >>> BatchLimits(8, 512, 4, 8, True).split(batch=64, gpus=4)
        Split(local=8, accumulation=1)
        """
        share, accumulation = math.ceil(batch / gpus), 0
        if self.accumulation and self.largest_local:
            accumulation = math.ceil(share / self.largest_local) - 1
        if self.accumulation and gpus == 1 and batch > self.first:
            # One GPU alone measures the gradient noise by comparing passes, so it makes at least two.
            accumulation = max(accumulation, 1)
        local, most = math.ceil(share / (accumulation + 1)), (self.largest or batch) // (gpus * (accumulation + 1))
        return Split(max(min(local, most), 1), accumulation)

    def problem(self, split: Split, gpus: int) -> str | None:
        """Why a gang cannot have a split, or None. A batch may be below the first by what does not divide evenly."""
        local, accumulation = split
        batch, largest = split.batch(gpus), self.largest or self.first
        if gpus > self.most_gpus:
            return f"its batch of at most {largest} is too small for {gpus} GPUs"
        if accumulation < 0 or (accumulation and not self.accumulation):
            return f"its steps cannot have {accumulation + 1} passes"
        if local < self.smallest_local:
            return f"{local} samples per GPU are fewer than its {self.smallest_local}"
        if local > self.largest_local > 0:
            return f"{local} samples per GPU are more than its {self.largest_local}"
        if batch > largest:
            return f"a batch of {batch} is larger than its {largest}"
        if batch + gpus * (accumulation + 1) <= self.first:
            return f"a batch of {batch} is smaller than its first of {self.first}"
        return None


def limits_of(
    first: int,
    largest: int | None = None,
    smallest_local: int | None = None,
    largest_local: int | None = None,
    accumulation: bool = False,
) -> BatchLimits:
    """The limits of one job; limits that contradict each other are an error."""
    given = {"first batch": first, "largest batch": largest}
    given |= {"smallest local batch": smallest_local, "largest local batch": largest_local}
    for name, value in given.items():
        if value is not None and not value >= 1:
            raise InputError(f"the {name} must be at least 1, not {value}")
    if largest is not None and largest < first:
        raise InputError(f"the largest batch {largest} is below the first batch {first}")
    least, most = smallest_local or 1, largest_local or 0
    if most and most < least:
        raise InputError(f"the largest local batch {most} is below the smallest local batch {least}")
    if largest is not None and largest < least:
        raise InputError(f"the largest batch {largest} is below the smallest local batch {least}")
    return BatchLimits(first, largest or 0, least, most, accumulation)


class Tuning(NamedTuple):
    """How a job of a trace trains with other GPUs and batches, for simulations.

    Local batches are of one replica and pass. `step_times` are the seven parameters of `models.step_time.StepModel`.
    `noise` are stretches of the work: until what part of it, and the noise scale of the gradients there.
    """

    first_batch: int
    largest_batch: int
    smallest_local: int
    largest_local: int
    step_times: tuple[float, ...]
    noise: tuple[tuple[float, float], ...]

    @property
    def limits(self) -> BatchLimits:
        """What batch sizes a scheduler may choose."""
        return BatchLimits(
            self.first_batch, self.largest_batch, self.smallest_local, self.largest_local, accumulation=True
        )

    def problem(self) -> str | None:
        """What is wrong with it, or None."""
        try:
            limits_of(*self[:4], accumulation=True)
        except InputError as error:
            return str(error)
        if len(self.step_times) != 7 or not all(0 <= value < math.inf for value in self.step_times):
            return f"{list(self.step_times)} are not the seven parameters of step times"
        if not (self.step_times[0] > 0 and self.step_times[6] >= 1):
            return "a pass takes more than 0 s, and the overlap is at least 1"
        last = 0.0
        for until, scale in self.noise:
            if not (last < until <= 1 and 0 <= scale < math.inf):
                return "noise scales are not negative, and hold until rising parts of the work, within (0, 1]"
            last = until
        return None if last == 1.0 else "the last noise scale must hold until 1"

    def plain(self) -> dict[str, Any]:
        """This as JSON values."""
        return self._asdict() | {"step_times": list(self.step_times), "noise": [list(part) for part in self.noise]}

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> Tuning:
        """Read what `plain` gave."""
        noise = tuple((float(until), float(scale)) for until, scale in values["noise"])
        return Tuning(**{**values, "step_times": tuple(map(float, values["step_times"])), "noise": noise})


class Timing(NamedTuple):
    """The step time of a job on one allocation; `gradient_s`, the time of a single pass, may be unknown (NaN).

    `gpu_type` is where it was measured; if it is not given, that is the type that the job holds when it is reported.
    """

    nodes: int
    replicas: int
    local: int
    accumulation: int
    step_s: float
    gradient_s: float = math.nan
    gpu_type: str = ""

    def plain(self) -> list[Any]:
        """The timing as JSON values; null stands for what is not finite."""
        times = [value if math.isfinite(value) else None for value in self[4:6]]
        return [*self[:4], *times, self.gpu_type]

    @staticmethod
    def from_plain(values: Sequence[Any]) -> Timing:
        """Read what `plain` gave."""
        times = (math.nan if value is None else value for value in values[4:6])
        return Timing(*values[:4], *times, *values[6:])


class Adaptive(NamedTuple):
    """A job whose batch size a scheduler may choose.

    `split` is what it was given; None while it trains with its own. `timings` has one for each allocation and batch
    that it has tried, the latest last. `reports` counts the timings that it has reported so far. `local_limits` are the
    fewest and the most samples of a replica and pass on single GPU types, where they are not those of `limits`.
    """

    limits: BatchLimits
    split: Split | None = None
    timings: tuple[Timing, ...] = ()
    reports: int = 0
    local_limits: LocalLimits = ()

    def limits_on(self, gpu_type: str) -> BatchLimits:
        """The limits on a GPU type.

        >>> Adaptive(BatchLimits(32, 512, 8, 16), local_limits=(("a100", 8, 64),)).limits_on("a100").largest_local
        64
        """
        for name, least, most in self.local_limits:
            if name == gpu_type:
                return self.limits._replace(smallest_local=least, largest_local=most)
        return self.limits

    def timed(self, timing: Timing) -> Adaptive:
        """With a new timing, which replaces an older one of the same allocation and batch."""
        others = [one for one in self.timings if (*one[:4], one.gpu_type) != (*timing[:4], timing.gpu_type)]
        return self._replace(timings=(*others, timing)[-MOST_TIMINGS:], reports=self.reports + 1)

    def last(self, timing: Timing | None) -> float | None:
        """The step time that it last reported for the same allocation and batch as another timing, if it did."""
        return next((one.step_s for one in self.timings if timing is not None and one[:4] == timing[:4]), None)

    def plain(self) -> list[Any]:
        """This as JSON values."""
        split = None if self.split is None else list(self.split)
        local_limits = [list(each) for each in self.local_limits]
        return [list(self.limits), split, [timing.plain() for timing in self.timings], self.reports, local_limits]

    @staticmethod
    def from_plain(values: Sequence[Any]) -> Adaptive:
        """Read what `plain` gave."""
        limits, split, timings, reports, *rest = values
        return Adaptive(
            BatchLimits(*limits),
            None if split is None else Split(*split),
            tuple(Timing.from_plain(timing) for timing in timings),
            reports,
            tuple((str(name), int(least), int(most)) for name, least, most in (rest[0] if rest else ())),
        )
