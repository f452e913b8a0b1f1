"""The models of the built-in profile in figures: published sizes, and constants chosen by hand.

FLOPs count a multiply-add as two operations and cover the forward pass of one sample. Activation bytes are what one
sample keeps in single precision until the backward pass. `efficiency`, `half_batch`, `overhead_s` and `host_s` are
round figures, chosen so that the estimates fall near the V100, P100 and K80 rates that Gavel published; the models that
Gavel did not measure take the figures of the nearest kind of network. `docs/profiles.md` lists the sources.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model with its usual dataset.

    `efficiency` is the share of a GPU's sustained rate that large batches reach, `half_batch` the batch per GPU at
    which half of it is reached, `overhead_s` the time of launching one step on a V100 host, `host_s` the time for which
    the host prepares one sample and the GPU waits.
    """

    name: str
    forward_flops: float
    parameters: int
    activation_bytes: int
    usual_batch: int
    efficiency: float
    half_batch: float
    overhead_s: float
    host_s: float = 0.0


def _figures(
    name: str,
    gflops: float,
    million_parameters: float,
    activation_mib: float,
    usual_batch: int,
    efficiency: float,
    half_batch: float,
    overhead_ms: float,
    host_us: float = 0.0,
) -> ModelFigures:
    parameters, activations = round(million_parameters * 1e6), round(activation_mib * MIB)
    flops, overhead_s, host_s = gflops * 1e9, overhead_ms * 1e-3, host_us * 1e-6
    return ModelFigures(name, flops, parameters, activations, usual_batch, efficiency, half_batch, overhead_s, host_s)


#                      GFLOP  Mparam  MiB   batch  eff  half  ms  us
_FIGURES = (
    _figures("ResNet-18", 1.11, 11.2, 12, 128, 0.28, 8, 22),
    _figures("ResNet-50", 8.2, 25.6, 96, 64, 0.27, 2, 35),
    _figures("LSTM", 0.51, 14.0, 14, 20, 0.17, 8, 6),
    _figures("Transformer", 2.45, 49.0, 16, 64, 0.22, 4, 55),
    _figures("Recommendation", 0.016, 8.0, 0.4, 2048, 0.20, 64, 6, 22),
    _figures("VGG19", 39.3, 143.7, 120, 64, 0.30, 1, 12),
    _figures("BERT-base", 71.0, 110.0, 450, 12, 0.25, 1, 30),
    _figures("DeepSpeech2", 15.0, 41.0, 50, 20, 0.17, 4, 30),
    _figures("YOLOv3", 65.9, 61.9, 350, 8, 0.25, 0.5, 40),
    _figures("A3C", 0.05, 0.6, 2, 4, 0.10, 4, 130),
    _figures("CycleGAN", 720.0, 28.3, 2048, 1, 0.27, 0, 20),
)
FIGURES: dict[str, ModelFigures] = {figures.name: figures for figures in _FIGURES}
