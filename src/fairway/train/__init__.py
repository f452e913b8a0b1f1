"""What a training script imports: measuring how noisy its gradients are, and choosing batch sizes by that.

This room needs the standard library only and works with torch where a script has loaded it.
"""

from __future__ import annotations

from fairway.train.accordion import CriticalRegime, EpochGradient, LayerRegimes
from fairway.train.batch_schedule import AccordionSchedule, NoiseScaleSchedule, rate_factor
from fairway.train.gradients import gradients_of, squared_norm
from fairway.train.noise_scale import ConsecutiveNoiseEstimator, Noise, NoiseEstimator, ReplicaNoiseEstimator

__all__ = [
    "AccordionSchedule",
    "ConsecutiveNoiseEstimator",
    "CriticalRegime",
    "EpochGradient",
    "LayerRegimes",
    "Noise",
    "NoiseEstimator",
    "NoiseScaleSchedule",
    "ReplicaNoiseEstimator",
    "gradients_of",
    "rate_factor",
    "squared_norm",
]
