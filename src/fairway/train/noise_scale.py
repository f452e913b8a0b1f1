"""The gradient noise scale of a training run, measured while it trains.

McCandlish et al. ("An empirical model of large-batch training", 2018) compare the noise of a gradient with the gradient
itself: with G the true gradient and Sigma the covariance of one sample's gradient, B = tr(Sigma) / |G|². Below B,
doubling the batch nearly halves the steps; far above it returns vanish. A gradient g of a batch b has
E|g|² = |G|² + tr(Sigma) / b, so squared norms at two batch sizes are two equations for the two unknowns, each of which
has an unbiased solution. Their ratio would not be unbiased, and one step says little, so each is averaged
exponentially for itself and the averages are divided, as in KungFu (Mai et al., OSDI 2020).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairway.train.gradients import Gradient, copied, layers, squared_norm, squared_norm_of_mean
from fairway.train.states import State, read_state


class Noise(NamedTuple):
    """What is known of the gradients of a run: |G|² and tr(Sigma), the variance of the gradient of one sample."""

    squared_gradient: float
    variance: float

    @property
    def scale(self) -> float:
        """The gradient noise scale, in samples."""
        return self.variance / self.squared_gradient

    def gain(self, scale: float, reference: float) -> float:
        """How many steps at the batch size `reference` one step at `scale` times that is worth, between 1 and `scale`.

        This is the gain of AdaScale (Johnson et al., ICML 2020), (var + sqr) / (var / scale + sqr), where `var` is the
        variance of a gradient at the reference batch. Where both are zero nothing is gained.
        """
        variance = self.variance / reference
        noise = variance / scale + self.squared_gradient
        return (variance + self.squared_gradient) / noise if noise > 0 else 1.0

    def efficiency(self, batch: float, reference: float) -> float:
        """Progress per sample at a batch size, relative to that at `reference` (Pollux, OSDI 2021).

        It is the gain divided by how many times more samples a step takes.
        """
        return (self.scale + reference) / (self.scale + batch)


class NoiseEstimator:
    """Averages of |G|² and tr(Sigma) over squared norms of gradients at two batch sizes.

    The quantities are those of single samples, so the averages go on when the batch size changes. A `decay` nearer to 1
    averages over more steps (1 / (1 - decay) of them count): it is needed where batches are far smaller than
    the noise scale, because then a step's estimate of |G|² is mostly noise.
    """

    kind = "noise"

    def __init__(self, decay: float = 0.9) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be in 0…1, not {decay}")
        self.decay = decay
        self.observed = 0
        self.skipped = 0
        self._squared_gradient = 0.0
        self._variance = 0.0
        self._weight = 0.0

    def observe_norms(self, small: float, large: float, small_batch: float, large_batch: float) -> bool:
        """Take the squared norms of a gradient of a small batch and of one of a large batch that contains it.

        `small` should be the mean over all small batches in the large one. One of them would be enough for an unbiased
        result, but with a larger variance: most of what the norm of a small batch adds is its own noise. A norm that is
        not finite is skipped (False). Two equal batch sizes teach nothing, and are skipped as well.
        """
        if not 0 < small_batch <= large_batch:
            raise ValueError(f"batch sizes must be positive and in order, not {small_batch} and {large_batch}")
        if small < 0 or large < 0:
            raise ValueError(f"squared norms are not negative: {small}, {large}")
        if small_batch == large_batch:
            return False
        squared_gradient = (large_batch * large - small_batch * small) / (large_batch - small_batch)
        variance = (small - large) / (1 / small_batch - 1 / large_batch)
        if not (math.isfinite(squared_gradient) and math.isfinite(variance)):
            self.skipped += 1
            return False
        # Estimates below zero are averaged like all others: leaving them out would be a bias.
        fresh = 1 - self.decay
        self._squared_gradient = self.decay * self._squared_gradient + fresh * squared_gradient
        self._variance = self.decay * self._variance + fresh * variance
        self._weight = self.decay * self._weight + fresh
        self.observed += 1
        return True

    @property
    def noise(self) -> Noise | None:
        """The averages, corrected for having begun at zero; None while the gradient cannot be told from noise."""
        if self._weight == 0 or self._squared_gradient <= 0:
            return None
        # A variance below zero is as good as none; it happens if only one of the small batches is measured.
        noise = Noise(self._squared_gradient / self._weight, max(self._variance, 0.0) / self._weight)
        return noise if math.isfinite(noise.scale) else None

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale in samples; None if there is no estimate, and no decision should be taken."""
        noise = self.noise
        return None if noise is None else noise.scale

    def state(self) -> State:
        """The averages as JSON values."""
        return {
            "kind": self.kind,
            "squared_gradient": self._squared_gradient,
            "variance": self._variance,
            "weight": self._weight,
            "observed": self.observed,
            "skipped": self.skipped,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        names = ("squared_gradient", "variance", "weight", "observed", "skipped")
        squared_gradient, variance, weight, observed, skipped = read_state(state, self.kind, *names)
        self._squared_gradient, self._variance, self._weight = float(squared_gradient), float(variance), float(weight)
        self.observed, self.skipped = int(observed), int(skipped)


class ReplicaNoiseEstimator(NoiseEstimator):
    """The noise scale from the gradients of several replicas in one step, or of several accumulated micro-batches.

    The averaged squared norm of n replicas and that of the averaged gradient give tr(Sigma) as the sample variance
    between replicas, which is never negative, and |G|² as the mean inner product of two different replicas.
    """

    kind = "replica_noise"

    def observe(self, gradients: Sequence[Gradient], batch: float) -> bool:
        """Take the gradients of all replicas, each the mean over `batch` samples of its own."""
        if not gradients:
            raise ValueError("there are no gradients")
        replicas = [list(layers(gradient)) for gradient in gradients]
        small = math.fsum(map(squared_norm, replicas)) / len(replicas)
        large = squared_norm_of_mean(replicas) if math.isfinite(small) else math.nan
        return self.observe_norms(small, large, batch, batch * len(replicas))

    def observe_reduced(self, local: float, reduced: float, batch: float, group: Any = None) -> bool:
        """Take the squared norm of this process's gradient and that of the gradient averaged over all processes.

        With `torch.distributed` every process of the group must call this in the same step, even if its gradient is not
        finite: the norms are averaged over the group, so all processes get the same estimate, or all skip the step.
        `batch` is that of one process. Without a process group there is one process, and nothing to learn.
        """
        (small, large), processes = mean_over_processes((local, reduced), group)
        return self.observe_norms(small, large, batch, batch * processes)


class _Step(NamedTuple):
    """The gradient of a step, its squared norm, and its batch size."""

    gradient: list[Any]
    norm: float
    batch: float


class ConsecutiveNoiseEstimator(NoiseEstimator):
    """The noise scale from consecutive gradients g, h of one replica, as in AdaptDL, the library of Pollux.

    Two gradients of batch b at almost the same weights are two independent samples, and their mean is a gradient of
    batch 2b. With |g + h|² / 4 as the large and (|g|² + |h|²) / 2 as the small squared norm the equations become
    |G|² = g·h and tr(Sigma) = b |g - h|² / 2, both unbiased as long as the weights stay.

    They move, by the learning rate r times g. With H the Hessian, and to first order in r, g·h is too small by
    r (G'HG + tr(H Sigma) / b), since the step itself carries the noise of g into h; b |g - h|² / 2 is too large by
    r tr(H Sigma). Near a minimum, where H is positive, both make the noise scale too large, in proportion to the
    learning rate. Where there are replicas or micro-batches, prefer `ReplicaNoiseEstimator`.
    """

    kind = "consecutive_noise"

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__(decay)
        self._last: _Step | None = None

    def observe(self, gradient: Gradient, batch: float) -> bool:
        """Take the gradient of a step, the mean over `batch` samples; True if it made a pair with the one before.

        A gradient that is not finite, and a change of batch size, start a new pair. Each gradient is in two pairs: that
        costs nothing, and gives more accurate averages than pairs that do not overlap.
        """
        if not batch > 0:
            raise ValueError(f"the batch size must be positive, not {batch}")
        gradient = copied(gradient)
        norm = squared_norm(gradient)
        if not math.isfinite(norm):
            self.skipped += 1
            self._last = None
            return False
        last, self._last = self._last, _Step(gradient, norm, batch)
        if last is None or last.batch != batch:
            return False
        large = squared_norm_of_mean((last.gradient, gradient))
        return self.observe_norms((last.norm + norm) / 2, large, batch, 2 * batch)

    def start_anew(self) -> None:
        """Forget the last gradient: the next one is not paired with it, as after loading a checkpoint."""
        self._last = None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave. The last gradient is not part of a state, so a new pair is started."""
        super().restore(state)
        self.start_anew()


def mean_over_processes(values: Sequence[float], group: Any) -> tuple[list[float], int]:
    """Numbers averaged over the processes of a group of `torch.distributed`, and how many processes those are."""
    # If torch is not loaded there is no process group either, and loading it takes seconds.
    torch, distributed = sys.modules.get("torch"), sys.modules.get("torch.distributed")
    if torch is None or distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return list(values), 1
    on_gpu = distributed.get_backend(group) == "nccl"
    numbers = torch.tensor(values, dtype=torch.float64, device="cuda" if on_gpu else "cpu")
    distributed.all_reduce(numbers, group=group)
    processes = distributed.get_world_size(group)
    return [number / processes for number in numbers.tolist()], processes
