"""Estimated training speed from arithmetic: FLOPs, bytes and datasheets. These are estimates, not measurements.

The time of a step is that of the arithmetic and the memory traffic of a mini-batch (a roofline with a rounded corner,
after Williams et al., CACM 2009), plus a fixed cost of launching it, plus the part of the gradient all-reduce that the
backward pass does not hide (ring all-reduce, after Patarasuk and Yuan, JPDC 2009). Expect a factor of two either way on
a given machine. The figures are good for the shape: which GPU helps which model, and what gangs lose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairway.core import portable
from fairway.core.errors import InputError
from fairway.core.hardware import GpuModel, known_gpu, known_names
from fairway.models.figures import FIGURES, ModelFigures
from fairway.models.names import ModelNames, ProfileKey

TRAIN_FLOPS_PER_FORWARD = 3.0
"""The backward pass costs twice the forward pass: gradients of the inputs and of the weights."""
BACKWARD_SHARE = 2 / 3
STATE_BYTES_PER_PARAMETER = 16
"""Weight, gradient and the two moments of Adam, four bytes each."""
GRADIENT_BYTES_PER_PARAMETER = 4
PASSES_OVER_ACTIVATIONS = 3
"""Written going forward, read going back, and their gradients written: each byte crosses the memory bus three times."""
BANDWIDTH_SHARE = 0.6
"""The part of the datasheet's memory bandwidth that streaming kernels get."""
LAUNCH_EXPONENT = 0.25
"""Launch costs fall slowly with newer GPUs and the hosts that carry them: with the fourth root of the speed."""
HIDDEN_SHARE = 0.7
"""At best this share of an all-reduce hides behind the backward pass; the last gradients always wait."""
NODE_GPUS = 8
"""Up to this gang size the links inside a node count; a larger gang shares them out in proportion."""
NETWORK_GB_PER_S = 10 / 8
"""The bandwidth of a spread gang: 10 Gbit/s Ethernet, that of the cloud machines in Gavel's measurements."""
WAIT_PER_DOUBLING = 0.08
"""Every doubling of a gang adds this share of a step, in which all wait for the slowest."""
PAIR_SHARE_MAX = 0.8
"""A job that shares its GPUs keeps at most this share of its speed, however idle the other job leaves them."""

_NAMES = ModelNames(FIGURES)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Where the time of one step goes, in seconds."""

    busy_s: float
    overhead_s: float
    exchange_s: float

    @property
    def total_s(self) -> float:
        return self.busy_s + self.overhead_s + self.exchange_s

    @property
    def utilisation(self) -> float:
        """The share of the step in which the GPU computes."""
        return self.busy_s / self.total_s


class BuiltinProfile:
    """Estimates for the models in `FIGURES` on every GPU of the catalogue, at any batch size and gang size."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int | None, str, int, bool], float] = {}

    @property
    def name(self) -> str:
        return "built-in estimates"

    @property
    def models(self) -> tuple[str, ...]:
        return _NAMES.names

    def rate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, *, spread: bool = False) -> float:
        """Estimated steps per second of a whole job; see `Profile.rate`."""
        key = (model, batch_size, gpu_type, gpus, spread)
        known = self._rates.get(key)
        if known is None:
            known = self._rates[key] = self._estimate(model, batch_size, gpu_type, gpus, spread)
        return known

    def pair_rates(self, a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
        """Estimated rates of two jobs that share the same GPUs.

        A job with the GPU to itself part of the time is slowed by the other's utilisation u, to 1 / (1 + u) of its
        speed and never above `PAIR_SHARE_MAX`: two jobs that fill the GPU keep half each (pure time slicing), and
        the two shares add up to 1.0 to 1.6.
        """
        gpu, name_a, name_b = known_gpu(gpu_type), _NAMES.find(a.model), _NAMES.find(b.model)
        if gpu is None or name_a is None or name_b is None or not 1 <= a.gpus == b.gpus:
            return None
        figures_a, figures_b = FIGURES[name_a], FIGURES[name_b]
        batch_a, batch_b = _batch_of(figures_a, a.batch_size), _batch_of(figures_b, b.batch_size)
        if memory_bytes(name_a, batch_a) + memory_bytes(name_b, batch_b) > gpu.memory_bytes:
            return None
        step_a, step_b = step_time(figures_a, batch_a, gpu, a.gpus), step_time(figures_b, batch_b, gpu, b.gpus)
        share_a = min(PAIR_SHARE_MAX, 1 / (1 + step_b.utilisation))
        share_b = min(PAIR_SHARE_MAX, 1 / (1 + step_a.utilisation))
        return share_a * a.gpus / step_a.total_s, share_b * b.gpus / step_b.total_s

    def _estimate(self, model: str, batch_size: int | None, gpu_type: str, gpus: int, spread: bool) -> float:
        figures = FIGURES[_NAMES.require(model)]
        gpu = known_gpu(gpu_type)
        if gpu is None:
            raise InputError(f"unknown GPU type {gpu_type!r}; known: {known_names()}")
        batch = _batch_of(figures, batch_size)
        if gpus < 1:
            raise InputError(f"a gang needs at least 1 GPU, not {gpus}")
        if memory_bytes(figures.name, batch) > gpu.memory_bytes:
            return 0.0
        return gpus / step_time(figures, batch, gpu, gpus, spread=spread).total_s


def memory_bytes(model: str, batch_size: int | None) -> int:
    """Estimated memory per GPU: weights, gradients and optimiser state, and the activations of a mini-batch."""
    figures = FIGURES[_NAMES.require(model)]
    return figures.parameters * STATE_BYTES_PER_PARAMETER + figures.activation_bytes * _batch_of(figures, batch_size)


def sustained_flops(gpu: GpuModel) -> float:
    """The geometric mean of the single-precision and the mixed-precision peak.

    Training code is written for either; most of it uses tensor cores for a part of the work.
    """
    return math.sqrt(gpu.fp32_tflops * gpu.tflops) * 1e12


def step_time(figures: ModelFigures, batch: int, gpu: GpuModel, gpus: int, *, spread: bool = False) -> StepTime:
    """The time that one step takes on each GPU of a gang, for a mini-batch that fits in memory."""
    flops = TRAIN_FLOPS_PER_FORWARD * figures.forward_flops * (batch + figures.half_batch)
    compute_s = flops / (figures.efficiency * sustained_flops(gpu))
    traffic_bytes = PASSES_OVER_ACTIVATIONS * figures.activation_bytes * batch
    traffic_bytes += STATE_BYTES_PER_PARAMETER * figures.parameters
    traffic_s = traffic_bytes / (BANDWIDTH_SHARE * gpu.memory_gb_per_s * 1e9)
    busy_s = math.sqrt(compute_s * compute_s + traffic_s * traffic_s)
    overhead_s = figures.overhead_s / portable.power(gpu.speed, LAUNCH_EXPONENT) + figures.host_s * batch
    wait_s = WAIT_PER_DOUBLING * portable.log2(gpus) * (busy_s + overhead_s)
    return StepTime(busy_s, overhead_s, wait_s + _all_reduce_s(figures, busy_s, gpu, gpus, spread))


def _all_reduce_s(figures: ModelFigures, busy_s: float, gpu: GpuModel, gpus: int, spread: bool) -> float:
    """The time of the gradient all-reduce that the backward pass does not hide."""
    if gpus == 1:
        return 0.0
    link_gb_per_s = max(NETWORK_GB_PER_S, gpu.link_gb_per_s * min(1.0, NODE_GPUS / gpus))
    gb_per_s = NETWORK_GB_PER_S if spread else link_gb_per_s
    sent_bytes = 2 * (gpus - 1) / gpus * GRADIENT_BYTES_PER_PARAMETER * figures.parameters
    sending_s = sent_bytes / (gb_per_s * 1e9)
    return max(sending_s - HIDDEN_SHARE * BACKWARD_SHARE * busy_s, (1 - HIDDEN_SHARE) * sending_s)


def _batch_of(figures: ModelFigures, batch_size: int | None) -> int:
    if batch_size is not None and batch_size < 1:
        raise InputError(f"model {figures.name!r}: batch size {batch_size} is not at least 1")
    return figures.usual_batch if batch_size is None else batch_size
