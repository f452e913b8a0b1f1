"""Skew-aware placement: gangs of models that ask for it wait for a place together; the others take what there is.

After Tiresias (NSDI'19). If a model keeps most of its size in one tensor, its gang is slow for its whole life when
scattered, so a place together is worth waiting for. A gang of a model with many similar tensors loses little, so it
does not wait. To insist on a place together for no gang, or for every gang, costs more than to insist for those that
need it. `models.tensors` defines skew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fairway.core.errors import InputError
from fairway.core.occupancy import Occupancy
from fairway.core.plan import AllAlike, Placer
from fairway.core.snapshot import Snapshot
from fairway.models.tensors import SKEW_LIMIT, known_tensors
from fairway.placement.gather import gathered
from fairway.placement.packed import Packed

Others = Literal["packed", "fragments"]
DAY_S = 86_400.0
_KNOBS = "threshold, patience_s, others"


class Together(AllAlike):
    """On as few nodes as the gang needs on an empty cluster; else it waits."""

    name = "together"
    located = True

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        placed = _PACKED.place(occupancy, gpus, gpu_type)
        if placed is None:
            return None
        nodes = len({occupancy.node_of_gpu[gpu] for gpu in placed})
        return placed if nodes == 1 or nodes <= _fewest_nodes(occupancy, gpus, gpu_type) else None


class Fragments(AllAlike):
    """Any free GPUs, those of the fullest nodes first, so that whole nodes stay whole as long as possible."""

    name = "fragments"
    located = True

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        return gathered(occupancy, occupancy.by_free[gpu_type][1:], gpus)


_PACKED, _TOGETHER = Packed(), Together()
_OTHERS: dict[Others, Placer] = {"packed": _PACKED, "fragments": Fragments()}


@dataclass(frozen=True)
class Skew:
    """Gangs of skewed models on as few nodes as possible, waiting for it if need be; others on any free GPUs.

    A job's skew is what its owner says, else that of its model in the built-in table. A gang above `threshold` that has
    waited for `patience_s` takes the fewest nodes there are at the time. `others` says how gangs below the threshold
    choose among the free GPUs. A gang of an unknown model is packed and does not wait: nothing says that waiting would
    pay.
    """

    threshold: float = SKEW_LIMIT
    patience_s: float = DAY_S
    others: Others = "packed"

    name = "skew"
    located = True

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be from 0 to 1, not {self.threshold:g}")
        if not self.patience_s >= 0:
            raise ValueError(f"patience_s must be at least 0, not {self.patience_s:g}")
        if self.others not in _OTHERS:
            raise ValueError(f"others must be one of {', '.join(_OTHERS)}, not {self.others!r}")

    @staticmethod
    def of(text: str) -> Skew:
        """The placement with knobs as on the command line, `threshold=0.4,patience_s=3600,others=fragments`."""
        values: dict[str, float | str] = {}
        for item in filter(None, text.split(",")):
            key, _, value = item.partition("=")
            if key not in _KNOBS.split(", ") or key in values:
                problem = (
                    f"the knob {key!r} is given twice" if key in values else f"no knob {key!r}; its knobs: {_KNOBS}"
                )
                raise InputError(f"placement 'skew': {problem}")
            try:
                values[key] = value if key == "others" else float(value)
            except ValueError:
                raise InputError(f"placement 'skew': {key} must be a number, not {value!r}") from None
        try:
            return Skew(**values)  # type: ignore[arg-type]
        except ValueError as error:
            raise InputError(f"placement 'skew': {error}") from None

    def suited(self, snapshot: Snapshot, row: int) -> Placer:
        skew = skew_of(snapshot, row)
        if math.isnan(skew):
            return _PACKED
        if skew <= self.threshold:
            return _OTHERS[self.others]
        # A running job that gets other GPUs must not be stopped only because there is no better place.
        waits = not snapshot.held[row] and snapshot.now_s < self._patient_until_s(snapshot, row)
        return _TOGETHER if waits else _PACKED

    def retry_s(self, snapshot: Snapshot, row: int) -> float:
        """When the patience of a gang that waits for a place together ends."""
        until_s = self._patient_until_s(snapshot, row)
        return until_s if until_s > snapshot.now_s else math.inf

    def _patient_until_s(self, snapshot: Snapshot, row: int) -> float:
        # A grid of microseconds may round the end up or down.
        return float(snapshot.idle_since_s[row]) + self.patience_s - 1e-6

    def place(self, occupancy: Occupancy, gpus: int, gpu_type: int) -> tuple[int, ...] | None:
        """Place a job about which nothing is known: packed."""
        return _PACKED.place(occupancy, gpus, gpu_type)


def skew_of(snapshot: Snapshot, row: int) -> float:
    """The skew of a row's model: as its owner says, else from the table; NaN if neither knows."""
    told = snapshot.facts(row).skew
    if not math.isnan(told):
        return told
    tensors = known_tensors(snapshot.names.models[snapshot.model[row]])
    return math.nan if tensors is None else tensors.skew


def _fewest_nodes(occupancy: Occupancy, gpus: int, gpu_type: int) -> int:
    """How many nodes a gang would need on an empty cluster; nodes that are down do not count."""
    cluster = occupancy.cluster
    sizes = [
        node.gpus
        for number, node in enumerate(cluster.nodes)
        if cluster.node_type[number] == gpu_type and number not in occupancy.down
    ]
    needed, left = 0, gpus
    for size in sorted(sizes, reverse=True):
        if left <= 0:
            break
        needed, left = needed + 1, left - size
    return needed
