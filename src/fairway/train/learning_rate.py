"""Learning rates for other batch sizes: factors for the rate that belongs to the first batch size.

The fixed rules know only how many times larger the batch is. AdaScale (Johnson et al., ICML 2020) also knows how noisy
the gradients are: its factor is the gain of a step, so it grows only as long as a larger batch brings more. LEGW (You
et al., SC 2019) takes the square root and a longer warm-up.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from fairway.train.noise_scale import Noise

RateRule: TypeAlias = Literal["linear", "sqrt", "linear_then_sqrt"]
RATE_RULES: tuple[RateRule, ...] = ("linear", "sqrt", "linear_then_sqrt")
KNEE = 8.0
"""Under `linear_then_sqrt` the learning rate is proportional to the batch size up to this ratio."""


def rate_factor(ratio: float, rule: RateRule = "linear_then_sqrt", knee: float = KNEE) -> float:
    """The factor for the learning rate when the batch is `ratio` times as large.

    `linear` is the rule of Goyal et al. (2017), `sqrt` that of Krizhevsky (2014). `linear_then_sqrt` is linear up to
    `knee` and grows with the square root from there, without a jump: a bare square root above the knee would lower the
    rate when the batch grows past it.

    >>> [rate_factor(ratio) for ratio in (0.5, 1, 8, 32)]
    [0.5, 1.0, 8.0, 16.0]
    """
    if not ratio > 0 or not knee > 0:
        raise ValueError(f"ratio and knee must be positive, not {ratio} and {knee}")
    if rule == "sqrt":
        return math.sqrt(ratio)
    if rule == "linear" or (rule == "linear_then_sqrt" and ratio <= knee):
        return float(ratio)
    if rule == "linear_then_sqrt":
        return knee * math.sqrt(ratio / knee)
    raise ValueError(f"{rule!r} is not one of {', '.join(RATE_RULES)}")


def adascale_factor(noise: Noise | None, batch: float, first: float, *, adaptive: bool = False) -> float:
    """The factor of AdaScale for a batch that is not smaller than the first one.

    For an `adaptive` optimiser like Adam it is the square root of that, as in AdaptDL. Without an estimate of the
    noise it is 1, the rate of the first batch, which is never too large.

    >>> adascale_factor(Noise(1.0, 1280.0), 512, 128)
    3.142857142857143
    """
    if not 0 < first <= batch:
        raise ValueError(f"need 0 < first <= batch, not {first} and {batch}")
    gain = 1.0 if noise is None else noise.gain(batch / first, first)
    return math.sqrt(gain) if adaptive else gain


def legw_factor(ratio: float, epochs: float, warmup_epochs: float) -> float:
    """The factor of LEGW after some epochs, if the first batch size had a linear warm-up of `warmup_epochs`.

    A batch that is `ratio` times as large warms up for as many steps, which are `ratio` times as many epochs.

    >>> [legw_factor(4, epochs, 2.5) for epochs in (0, 5, 10, 20)]
    [0.0, 1.0, 2.0, 2.0]
    """
    if not ratio > 0 or not epochs >= 0 or not warmup_epochs >= 0:
        raise ValueError(f"ratio must be positive, epochs not negative: {ratio}, {epochs}, {warmup_epochs}")
    warmup = warmup_epochs * ratio
    return math.sqrt(ratio) * (min(epochs / warmup, 1.0) if warmup else 1.0)
