"""What a training script imports: a session with the scheduler, and batch sizes chosen by how noisy gradients are.

    from fairway import train

    session = train.session(steps=1000)
    for step in session.steps(save, load):
        session.report(loss=train_on(step))

This package needs only the standard library, and works with torch if a script has loaded it.
"""

from __future__ import annotations

from fairway.train.accordion import CriticalRegime, EpochGradient, LayerRegimes
from fairway.train.adaptive import AccordionBatch, Batch, GivenBatch, NoiseScaleBatch
from fairway.train.batch_schedule import AccordionSchedule, NoiseScaleSchedule
from fairway.train.gradients import gradients_of, squared_norm
from fairway.train.learning_rate import adascale_factor, legw_factor, rate_factor
from fairway.train.noise_scale import ConsecutiveNoiseEstimator, Noise, NoiseEstimator, ReplicaNoiseEstimator
from fairway.train.probe import NoiseProbe
from fairway.train.sampler import Position, Sampler
from fairway.train.scheduled import Session, session
from fairway.train.stopping import shield_worker
from fairway.train.tuned import TunedBatch

__all__ = [
    "AccordionBatch",
    "AccordionSchedule",
    "Batch",
    "ConsecutiveNoiseEstimator",
    "CriticalRegime",
    "EpochGradient",
    "GivenBatch",
    "LayerRegimes",
    "Noise",
    "NoiseEstimator",
    "NoiseProbe",
    "NoiseScaleBatch",
    "NoiseScaleSchedule",
    "Position",
    "ReplicaNoiseEstimator",
    "Sampler",
    "Session",
    "TunedBatch",
    "adascale_factor",
    "gradients_of",
    "legw_factor",
    "rate_factor",
    "session",
    "shield_worker",
    "squared_norm",
]
