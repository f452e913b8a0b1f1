"""Jobs whose batch size a scheduler may choose, after the workloads of Pollux (Qiao et al., OSDI 2021).

Each job carries a model of its step times and of the noise of its gradients, so a simulation needs no profile. The
models are rounded fits to the measurements published with that paper, on nodes of four T4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.batch import Tuning
from fairway.core.errors import InputError
from fairway.core.job import JobSpec, Workload
from fairway.traces.draws import generator_of, need_at_least, whole_ms


class _Kind(NamedTuple):
    """A kind of job: how often it is drawn, its GPU-hours, and how it trains. Limits are first, largest, local ones."""

    model: str
    dataset: str
    share: float
    gpu_h: tuple[float, float]
    limits: tuple[int, int, int, int]
    step_times: tuple[float, ...]
    noise: tuple[float, ...]


_KINDS = (
    _Kind(
        *("ResNet-18", "cifar10", 0.64, (0.05, 1.0), (128, 4096, 32, 1024)),
        (0.02, 0.0007, 0.015, 0.012, 0.082, 0.0007, 1.24),
        (1900.0, 5500.0, 11000.0, 31000.0, 55000.0),
    ),
    _Kind(
        *("DeepSpeech2", "cmu-arctic", 0.15, (1.0, 10.0), (20, 640, 10, 80)),
        (0.32, 0.023, 0.14, 0.028, 0.1, 0.007, 1.02),
        (570.0, 13000.0, 33000.0, 49000.0, 30000.0),
    ),
    _Kind(
        *("BERT-base", "squad", 0.11, (1.0, 10.0), (12, 384, 4, 12)),
        (0.17, 0.059, 1.34, 0.014, 0.077, 0.0025, 1.82),
        (1400.0, 7600.0),
    ),
    _Kind(
        *("YOLOv3", "voc", 0.07, (10.0, 100.0), (8, 512, 4, 8)),
        (0.19, 0.025, 0.61, 0.022, 0.098, 0.009, 1.0),
        (260.0, 360.0, 510.0, 970.0, 3700.0),
    ),
    _Kind(
        *("ResNet-50", "imagenet", 0.03, (100.0, 190.0), (200, 12800, 20, 200)),
        (0.072, 0.0043, 0.075, 0.013, 0.089, 0.0073, 1.1),
        (7000.0, 8700.0, 26000.0, 55000.0, 54000.0),
    ),
)

_SHORT_H, _LONGEST_H = 0.25, 12.0
"""Jobs of fewer GPU-hours ask for one GPU; no job asks for so few that it would run for longer than this."""


def pollux_like(jobs: int = 160, seed: int = 0, span_h: float = 8.0, rigid: float = 0.2) -> Workload:
    """Jobs that come evenly over `span_h` hours; most of them are short, and a few need hundreds of GPU-hours.

    A job asks for 1, 2, 4, 8 or 16 GPUs, and for a batch that grows with them. A part `rigid` of all jobs may not be
    adapted.
    """
    rng = generator_of(jobs, seed)
    need_at_least(span_h, 0, "span_h")
    need_at_least(rigid, 0, "rigid")
    if rigid > 1:
        raise InputError(f"rigid {rigid:g} is not a part of all jobs, from 0 to 1")
    arrivals = np.sort(rng.random(jobs))
    arrivals = (arrivals - arrivals[0]) * (span_h * 3600.0)
    shares = np.array([kind.share for kind in _KINDS])
    kinds = rng.choice(len(_KINDS), jobs, p=shares / shares.sum())
    gangs, depth, fixed = 2 ** rng.integers(0, 4, jobs), rng.random(jobs), rng.random(jobs) < rigid
    out = []
    for index, kind in enumerate(_KINDS[drawn] for drawn in kinds.tolist()):
        low, high = kind.gpu_h
        gpu_h = low * float(portable.exp(depth[index] * portable.log(high / low)))
        gpus = int(gangs[index]) if gpu_h >= _SHORT_H else 1
        while gpu_h > gpus * _LONGEST_H:
            gpus *= 2
        out.append(_job(index, kind, gpus, gpu_h, float(arrivals[index]), bool(fixed[index])))
    return Workload.of(out, source=f"pollux-like seed {seed}", format="generated")


def _job(index: int, kind: _Kind, gpus: int, gpu_h: float, submitted_s: float, fixed: bool) -> JobSpec:
    stretches = tuple(((at + 1) / len(kind.noise), scale) for at, scale in enumerate(kind.noise))
    batch = min(kind.limits[0] * gpus, kind.limits[1])
    return JobSpec(
        id=str(index),
        submitted_s=whole_ms(submitted_s),
        gpus=gpus,
        duration_s=whole_ms(gpu_h * 3600.0 / gpus),
        model=kind.model,
        dataset=kind.dataset,
        global_batch=batch,
        adaptation="none" if fixed else "tuned",
        tuning=None if fixed else Tuning(*kind.limits, kind.step_times, stretches),
    )
