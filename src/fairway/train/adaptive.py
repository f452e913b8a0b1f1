"""Batch sizes over a training: fixed, by the gradient noise scale, by Accordion, or as the scheduler wants them.

All have the same shape, so a loop is written once: `size` and `rate_factor` for the present, `observe` after each
backward pass, `end_epoch` for the next size, and `state` for checkpoints. Sizes count the samples of all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fairway.train.accordion import EpochGradient
from fairway.train.batch_schedule import AccordionSchedule, NoiseScaleSchedule
from fairway.train.gradients import Gradient
from fairway.train.learning_rate import RateRule, rate_factor
from fairway.train.noise_scale import ConsecutiveNoiseEstimator
from fairway.train.states import State, read_state


class NoiseMeasure(Protocol):
    """Something that measures a noise scale: `ConsecutiveNoiseEstimator`, or a `NoiseProbe` on a model of torch."""

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None while it is not known."""

    def observe(self, gradient: Gradient, batch: float) -> bool:
        """Take the gradient of a step, the mean over `batch` samples."""

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""


class Batch:
    """A batch size that stays, and what all kinds have in common.

    `sizes` are the batch sizes that a training may go through, in their order; they are announced to the scheduler.
    """

    kind = "batch"

    def __init__(self, first: int) -> None:
        if first < 1:
            raise ValueError(f"a batch size is at least 1, not {first}")
        self.first = first

    @property
    def size(self) -> int:
        """The present batch size, over all processes."""
        return self.first

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that it may become, in order."""
        return (self.first,)

    @property
    def rate_factor(self) -> float:
        """The factor for the learning rate that belongs to the first batch size."""
        return 1.0

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, if it is measured."""
        return None

    def observe(self, gradient: Gradient, batch: float) -> None:
        """Take the gradient of a step, the mean over `batch` samples."""

    def end_epoch(self) -> int:
        """The batch size of the next epoch."""
        return self.size

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        return {"kind": self.kind}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        read_state(state, self.kind)


class NoiseScaleBatch(Batch):
    """Doubles while the gradient noise scale is above it; see `NoiseScaleSchedule`."""

    kind = "noise_scale_batch"

    def __init__(
        self,
        first: int,
        largest: int,
        *,
        interval: int = 1,
        rule: RateRule = "linear_then_sqrt",
        noise: NoiseMeasure | None = None,
    ) -> None:
        super().__init__(first)
        self.schedule = NoiseScaleSchedule(first, largest, interval, rule)
        self.noise: NoiseMeasure = ConsecutiveNoiseEstimator() if noise is None else noise

    @property
    def size(self) -> int:
        """The present batch size."""
        return self.schedule.batch

    @property
    def sizes(self) -> tuple[int, ...]:
        """The first one and its doubles."""
        doublings = (self.schedule.largest // self.first).bit_length()
        return tuple(self.first << times for times in range(doublings))

    @property
    def rate_factor(self) -> float:
        """By the schedule's rule."""
        return self.schedule.rate_factor

    @property
    def noise_scale(self) -> float | None:
        """As measured."""
        return self.noise.noise_scale

    def observe(self, gradient: Gradient, batch: float) -> None:
        """Measure the noise of a step."""
        self.noise.observe(gradient, batch)

    def end_epoch(self) -> int:
        """Twice the batch, if the noise scale allows it."""
        return self.schedule.end_epoch(self.noise.noise_scale)

    def state(self) -> State:
        """Schedule and measurements."""
        return {"kind": self.kind, "schedule": self.schedule.state(), "noise": self.noise.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        schedule, noise = read_state(state, self.kind, "schedule", "noise")
        self.schedule.restore(schedule)
        self.noise.restore(noise)


class AccordionBatch(Batch):
    """The small batch in critical regimes, the large one elsewhere; see `AccordionSchedule`."""

    kind = "accordion_batch"

    def __init__(
        self,
        small: int,
        large: int,
        *,
        interval: int = 10,
        eta: float = 0.5,
        rule: RateRule = "linear_then_sqrt",
    ) -> None:
        super().__init__(small)
        self.schedule = AccordionSchedule(small, large, interval, eta, rule)
        self.gradient = EpochGradient()

    @property
    def size(self) -> int:
        """The present batch size."""
        return self.schedule.batch

    @property
    def sizes(self) -> tuple[int, ...]:
        """The small one, which comes first, and the large one."""
        return (self.schedule.small, self.schedule.large)

    @property
    def rate_factor(self) -> float:
        """By the schedule's rule."""
        return self.schedule.rate_factor

    def observe(self, gradient: Gradient, batch: float) -> None:
        """Add the gradient of a step to that of the epoch."""
        self.gradient.add(gradient, batch)

    def end_epoch(self) -> int:
        """The batch of the regime that was found. An epoch in which nothing was seen changes nothing."""
        size = self.schedule.end_epoch(self.gradient.norm())
        self.gradient.clear()
        return size

    def state(self) -> State:
        """The regime. The gradient accumulated in an epoch is as large as the model, and is not kept."""
        return {"kind": self.kind, "schedule": self.schedule.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        (schedule,) = read_state(state, self.kind, "schedule")
        self.schedule.restore(schedule)
        self.gradient.clear()


class GivenBatch(Batch):
    """The size that the scheduler wants: `ask` (a session's `wanted_batch`) is called at the end of each epoch.

    A wish is rounded down to a multiple of `multiple` (the shards) and kept within `largest`, what memory allows.
    """

    kind = "given_batch"

    def __init__(
        self,
        first: int,
        ask: Callable[[], int | None],
        *,
        largest: int | None = None,
        multiple: int = 1,
        rule: RateRule = "linear_then_sqrt",
    ) -> None:
        super().__init__(first)
        rate_factor(1.0, rule)
        if multiple < 1 or first % multiple:
            raise ValueError(f"the first batch, {first}, is no multiple of {multiple}")
        self.rule: RateRule = rule
        self._ask = ask
        self._largest = largest
        self._multiple = multiple
        self._size = self._wanted() or first

    @property
    def size(self) -> int:
        """The present batch size."""
        return self._size

    @property
    def rate_factor(self) -> float:
        """By the rule."""
        return rate_factor(self._size / self.first, self.rule)

    def end_epoch(self) -> int:
        """The wish of the scheduler, if it has one."""
        self._size = self._wanted() or self._size
        return self._size

    def state(self) -> State:
        """The size."""
        return {"kind": self.kind, "size": self._size}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; a wish of the scheduler, which may be newer, comes first at the next epoch."""
        (size,) = read_state(state, self.kind, "size")
        self._size = int(size)

    def _wanted(self) -> int | None:
        wanted = self._ask()
        if wanted is None:
            return None
        if self._largest is not None:
            wanted = min(wanted, self._largest)
        return wanted // self._multiple * self._multiple or None
