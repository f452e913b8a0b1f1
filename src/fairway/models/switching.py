"""What it costs to switch a GPU from one job to another, by model and by the way in which it is done.

There are three ways. *Restart* stops a process and starts another one. *Pipelined* (PipeSwitch, OSDI 2020) keeps
processes ready and copies a model layer by layer while its first layers compute. *Resident* (Hare, HPDC 2022) frees
memory early, loads the next model ahead of time, and keeps models in a GPU's memory while they fit.

`POSTER` holds the times that the poster of Hare gives for eight models. Other models take the row of their family, or
an estimate from the size of their weights; see docs/switching.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, get_args

from fairway.core.job import JobSpec
from fairway.models.builtin import memory_bytes
from fairway.models.figures import FIGURES
from fairway.models.names import ModelNames
from fairway.models.tensors import known_tensors

Method = Literal["restart", "pipelined", "resident"]
METHODS: tuple[Method, ...] = get_args(Method)
PCIE_BYTES_PER_S = 12e9
"""What PCIe 3.0 with 16 lanes carries in practice."""
STATE_PER_WEIGHT = 3
"""What stays on a GPU between two tasks of a job: the weights and the two moments of Adam. Gradients do not."""
FAMILIES = {
    "VGG11": "VGG19",
    "VGG16": "VGG19",
    "ResNet-18": "ResNet-50",
    "ResNet-101": "ResNet-50",
    "ResNet-152": "ResNet-50",
    "Inception4": "Inception3",
    "DeepSpeech": "DeepSpeech2",
    "FastGCN": "GraphSAGE",
    "GraphSAGE": "FastGCN",
}
"""The model whose times stand for a model that a table does not have."""
GRAPH_NETWORK_BYTES = 1e6
"""FastGCN and GraphSAGE have about a quarter of a million weights."""

_FAMILY_NAMES = ModelNames(FAMILIES)
_FIGURE_NAMES = ModelNames(FIGURES)


class SwitchTimes(NamedTuple):
    """What a switch to a model costs by each method, in seconds; `hit_s` if the model is still resident."""

    restart_s: float
    pipelined_s: float
    resident_s: float
    hit_s: float


class _Line(NamedTuple):
    """An estimate: a fixed cost, and seconds for each second of transfer."""

    base_s: float
    slope: float

    def at(self, transfer_s: float) -> float:
        return self.base_s + self.slope * transfer_s


class SwitchTable:
    """Measured switching times by model, with an estimate for every other model. `sizes` are bytes of weights."""

    def __init__(self, name: str, rows: Mapping[str, SwitchTimes], sizes: Mapping[str, float] | None = None) -> None:
        self.name = name
        self.rows = dict(rows)
        self._sizes = dict(sizes or {})
        self._names = ModelNames(self.rows)
        self._known: dict[str, SwitchTimes] = {}
        self.median = SwitchTimes(*(median(column) for column in zip(*self.rows.values(), strict=True)))
        self._lines = self._fitted()

    def times(self, model: str) -> SwitchTimes:
        """The row of a model, else that of its family, else an estimate; the median if its size is unknown."""
        times = self._known.get(model)
        if times is None:
            times = self._known[model] = self._looked_up(model)
        return times

    def estimate(self, model: str) -> SwitchTimes | None:
        """Times from the size of a model alone; None if that or all sizes of the table are unknown.

        A restart waits for the whole transfer. The other methods hide a part of it. What counts there are the weights
        without the largest tensor: huge dense layers are at the end of a network and arrive while the rest computes.
        """
        size = self.weights_bytes(model)
        if size is None or self._lines is None:
            return None
        restart, pipelined, resident = self._lines
        whole_s, exposed_s = size / PCIE_BYTES_PER_S, self._exposed_s(model, size)
        resident_s = resident.at(exposed_s)
        return SwitchTimes(restart.at(whole_s), pipelined.at(exposed_s), resident_s, min(self._least_hit_s, resident_s))

    def weights_bytes(self, model: str) -> float | None:
        """The size of a model's weights in single precision, or None."""
        own = self._names.find(model)
        if own in self._sizes:
            return self._sizes[own]
        tensors = known_tensors(model)
        return None if tensors is None else float(tensors.total_bytes)

    def _looked_up(self, model: str) -> SwitchTimes:
        if not model:
            return self.median
        family = _FAMILY_NAMES.find(model)
        for name in (model, FAMILIES[family] if family else ""):
            row = self._names.find(name)
            if row is not None:
                return self.rows[row]
        return self.estimate(model) or self.median

    @property
    def _least_hit_s(self) -> float:
        return min(times.hit_s for times in self.rows.values())

    def _exposed_s(self, model: str, size: float) -> float:
        tensors = known_tensors(model)
        return size * (1.0 - (tensors.skew if tensors else 0.0)) / PCIE_BYTES_PER_S

    def _fitted(self) -> tuple[_Line, _Line, _Line] | None:
        sized = [(name, times, size) for name, times in self.rows.items() if (size := self.weights_bytes(name))]
        if not sized:
            return None
        waits = [times.restart_s - size / PCIE_BYTES_PER_S for _, times, size in sized]
        exposed = [self._exposed_s(name, size) for name, _, size in sized]
        pipelined = _fit(exposed, [times.pipelined_s for _, times, _ in sized])
        resident = _fit(exposed, [times.resident_s for _, times, _ in sized])
        return _Line(max(median(waits), 0.0), 1.0), pipelined, resident


def _fit(transfers_s: Sequence[float], costs_s: Sequence[float]) -> _Line:
    """The line with the least sum of squared relative errors. It never falls, and never starts below 0."""
    ones = [1.0 / cost for cost in costs_s]
    moved = [transfer / cost for transfer, cost in zip(transfers_s, costs_s, strict=True)]
    # The normal equations of base · ones + slope · moved = 1.
    a, b = math.fsum(ones), math.fsum(moved)
    aa, ab, bb = _inner(ones, ones), _inner(ones, moved), _inner(moved, moved)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        return _Line(median(costs_s), 0.0)
    base_s, slope = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if slope < 0:
        return _Line(median(costs_s), 0.0)
    return _Line(base_s, slope) if base_s >= 0 else _Line(0.0, b / bb)


def _inner(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(left, right, strict=True))


def with_hits(rows: Mapping[str, tuple[float, float, float, float | None]]) -> dict[str, SwitchTimes]:
    """Rows of milliseconds as times. A hit that was not measured costs as much as the cheapest resident switch."""
    least_ms = min(resident for _, _, resident, _ in rows.values())
    return {
        name: SwitchTimes(restart / 1e3, pipelined / 1e3, resident / 1e3, (least_ms if hit is None else hit) / 1e3)
        for name, (restart, pipelined, resident, hit) in rows.items()
    }


POSTER = SwitchTable(
    "the poster of Hare",
    with_hits(
        {
            "VGG19": (3288.94, 4.01, 2.77, None),
            "ResNet-50": (5961.16, 4.75, 2.04, None),
            "Inception3": (7807.43, 5.03, 2.46, None),
            "BERT-base": (9016.99, 12.57, 5.03, None),
            "Transformer": (5257.17, 10.34, 5.79, None),
            "DeepSpeech2": (5125.64, 8.91, 4.27, None),
            "FastGCN": (5327.24, 2.86, 1.83, None),
            "GraphSAGE": (5213.54, 2.42, 0.96, None),
        }
    ),
    {"FastGCN": GRAPH_NETWORK_BYTES, "GraphSAGE": GRAPH_NETWORK_BYTES},
)
"""Milliseconds of a switch: "default", "PipeSwitch" and "Hare" in the poster's table. It does not give a hit. The
switch to GraphSAGE moves next to nothing, so its time is that of cleaning up, which a hit costs as well."""


@dataclass(frozen=True)
class Switching:
    """How GPUs are switched: by a method with a table of times, or at one cost for every switch."""

    text: str
    method: Method | None = None
    table: SwitchTable = POSTER
    fixed_s: float = 0.0

    @staticmethod
    def fixed(cost_s: float, text: str = "") -> Switching:
        """Every switch costs the same."""
        return Switching(text or f"{cost_s:g}s", fixed_s=cost_s)

    def cost_s(self, job: JobSpec) -> float:
        """What a switch to a job costs if its model is not resident. A job's own restart cost is used for `restart`."""
        if self.method is None:
            return self.fixed_s
        if self.method == "restart" and job.checkpoint_s is not None:
            return job.checkpoint_s
        return self._of(self.table.times(job.model))

    def hit_s(self, job: JobSpec) -> float:
        """What a switch to a job costs if its model is resident."""
        return self.table.times(job.model).hit_s if self.method == "resident" else self.cost_s(job)

    @property
    def typical_s(self) -> float:
        """What a switch to a job of an unknown model costs."""
        return self.fixed_s if self.method is None else self._of(self.table.median)

    def _of(self, times: SwitchTimes) -> float:
        return times[METHODS.index(self.method)] if self.method else self.fixed_s

    def state_bytes(self, job: JobSpec) -> float:
        """What a job keeps on each GPU while it is resident; infinite if that is unknown."""
        weights = self.table.weights_bytes(job.model)
        working = working_bytes(job)
        return working if weights is None else min(STATE_PER_WEIGHT * weights, working)


def working_bytes(job: JobSpec) -> float:
    """What a job needs on each GPU while it runs: what it says, else the built-in estimate, else infinite."""
    if job.memory_bytes:
        return float(job.memory_bytes)
    known = _FIGURE_NAMES.find(job.model)
    return math.inf if known is None else float(memory_bytes(known, job.batch_size))
