"""The GPUs that Fairway knows by name: memory, peak rates and a typical price, from the makers' datasheets.

Used to read `--cluster v100:16x4` and to scale durations where a cluster is mixed. Prices are round figures of
public on-demand lists (USD per GPU-hour) and serve to compare policies, not to predict a bill: a cluster file can
override every number here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Datasheet figures of one GPU type. `tflops` is the rate that mixed-precision training can reach at best."""

    name: str
    memory_bytes: int
    fp32_tflops: float
    tflops: float
    memory_gb_per_s: float
    link_gb_per_s: float
    price_per_h: float

    @property
    def speed(self) -> float:
        """Training speed relative to a V100: the geometric mean of the compute and of the memory-bandwidth ratio.

        Training is bound by neither alone; single-precision rate and bandwidth bracket it well on older GPUs, and the
        square root of the tensor-core ratio stands for the part of a step that can use them.
        """
        v100 = CATALOGUE["v100"]
        compute = math.sqrt(self.fp32_tflops / v100.fp32_tflops * self.tflops / v100.tflops)
        return math.sqrt(compute * self.memory_gb_per_s / v100.memory_gb_per_s)


def _gpu(name: str, gib: int, fp32: float, mixed: float, bandwidth: float, link: float, price: float) -> GpuModel:
    return GpuModel(name, gib * GIB, fp32, mixed, bandwidth, link, price)


#                 name        GiB  fp32   mixed  GB/s   link  $/h
_MODELS = (
    _gpu("k80", 12, 4.1, 4.1, 240, 12, 0.45),
    _gpu("m60", 8, 4.8, 4.8, 160, 12, 0.75),
    _gpu("p100", 16, 9.5, 19.0, 732, 12, 1.46),
    _gpu("v100", 16, 15.7, 125, 900, 150, 2.48),
    _gpu("t4", 16, 8.1, 65, 320, 12, 0.35),
    _gpu("rtx5000", 16, 11.2, 89, 448, 25, 0.82),
    _gpu("a10", 24, 31.2, 125, 600, 25, 1.01),
    _gpu("a100", 40, 19.5, 312, 1555, 300, 3.67),
    _gpu("h100", 80, 67, 990, 3350, 450, 6.98),
    _gpu("h200", 141, 67, 990, 4800, 450, 7.90),
)
CATALOGUE: dict[str, GpuModel] = {model.name: model for model in _MODELS}

ALIASES: dict[str, str] = {
    "v100m16": "v100",
    "v100m32": "v100",
    "aws": "t4",
    "rtx": "rtx5000",
    "quad": "rtx5000",
    "dgx": "a100",
    "dgx-ext": "a100",
    "azure": "v100",
    "g2": "a10",
    "g3": "a100",
    "gpu": "v100",
}
"""Names met in public traces. `aws`, `azure`, `rtx`, `quad`, `dgx` are the node types of the Pollux and Sia artifacts;
`g2` and `g3` are anonymised in Alibaba's 2023 trace and mapped to GPUs of their probable class."""


def known_gpu(name: str) -> GpuModel | None:
    """The datasheet of a GPU type by its name or alias, in any case; None where it is unknown."""
    key = name.lower()
    return CATALOGUE.get(ALIASES.get(key, key))


def known_names() -> str:
    """The known names as one readable list, for error messages."""
    return ", ".join([*CATALOGUE, *ALIASES])
