"""From GPU counts to concrete GPUs. Pure."""

from __future__ import annotations

from fairway.core.errors import InputError
from fairway.core.plan import Placer
from fairway.placement.count import Count
from fairway.placement.packed import Packed
from fairway.placement.spread import Spread

PLACEMENTS: dict[str, type[Packed] | type[Spread] | type[Count]] = {
    "packed": Packed,
    "spread": Spread,
    "count": Count,
}


def placement(name: str) -> Placer:
    """The placement of that name."""
    if name not in PLACEMENTS:
        raise InputError(f"unknown placement {name!r}; known: {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name]()


__all__ = ["PLACEMENTS", "Count", "Packed", "Placer", "Spread", "placement"]
