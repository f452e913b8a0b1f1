"""Batch sizes and learning rates that follow from what was measured: by the gradient noise scale, and by Accordion.

Both decide only at the ends of epochs, because a scheduler counts epochs and a data loader can be rebuilt there. Both
count samples over all replicas. A separate rule gives the learning rate (`learning_rate`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairway.train.accordion import CriticalRegime
from fairway.train.learning_rate import RateRule, rate_factor
from fairway.train.states import State, read_state


class NoiseScaleSchedule:
    """Doubles the batch at the end of an epoch in which the gradient noise scale is above it, as KungFu does.

    A noise scale equal to the batch is not enough, one decision doubles once, and the batch never exceeds `largest`,
    the samples that fit into the memory of all replicas. It never shrinks by itself.
    """

    kind = "noise_scale_schedule"

    def __init__(
        self, first: int = 16, largest: int = 4096, interval: int = 1, rule: RateRule = "linear_then_sqrt"
    ) -> None:
        if not 0 < first <= largest or interval < 1:
            raise ValueError(f"need 0 < first <= largest and interval >= 1, not {first}, {largest} and {interval}")
        rate_factor(1.0, rule)
        self.first = first
        self.largest = largest
        self.interval = interval
        self.rule: RateRule = rule
        self.batch = first
        self.epochs = 0

    def end_epoch(self, noise_scale: float | None) -> int:
        """The batch size of the next epoch; there is a decision every `interval` epochs, if there is an estimate."""
        self.epochs += 1
        if noise_scale is None or not math.isfinite(noise_scale) or self.epochs % self.interval:
            return self.batch
        if noise_scale > self.batch and 2 * self.batch <= self.largest:
            self.batch *= 2
        return self.batch

    @property
    def rate_factor(self) -> float:
        """The factor for the learning rate that belongs to the first batch size."""
        return rate_factor(self.batch / self.first, self.rule)

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        return {"kind": self.kind, "batch": self.batch, "epochs": self.epochs}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; a batch too large for the present memory is halved until it fits."""
        batch, epochs = read_state(state, self.kind, "batch", "epochs")
        self.batch, self.epochs = int(batch), int(epochs)
        while self.batch > self.largest:
            self.batch //= 2


class AccordionSchedule:
    """The small batch in critical regimes, and the large one elsewhere; it falls back when a regime turns critical."""

    kind = "accordion_schedule"

    def __init__(
        self,
        small: int,
        large: int,
        interval: int = 10,
        eta: float = 0.5,
        rule: RateRule = "linear_then_sqrt",
    ) -> None:
        if not 0 < small <= large:
            raise ValueError(f"need 0 < small <= large, not {small} and {large}")
        rate_factor(1.0, rule)
        self.small = small
        self.large = large
        self.rule: RateRule = rule
        self.regime = CriticalRegime(interval, eta)

    @property
    def batch(self) -> int:
        """The batch size of the present epoch."""
        return self.small if self.regime.critical else self.large

    def end_epoch(self, norm: float) -> int:
        """Take the norm of the gradient accumulated over the epoch that ended; the batch size of the next one."""
        self.regime.end_epoch(norm)
        return self.batch

    @property
    def rate_factor(self) -> float:
        """The factor for the learning rate that belongs to the small batch."""
        return rate_factor(self.batch / self.small, self.rule)

    def state(self) -> State:
        """What a resumed job needs, as JSON values."""
        return {"kind": self.kind, "regime": self.regime.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        (regime,) = read_state(state, self.kind, "regime")
        self.regime.restore(regime)
