"""From GPU counts to concrete GPUs. Pure."""

from __future__ import annotations

from fairway.core.errors import InputError
from fairway.core.plan import Placer
from fairway.placement.count import Count
from fairway.placement.freest import Freest
from fairway.placement.packed import Packed
from fairway.placement.skew import Skew
from fairway.placement.spread import Spread

PLACEMENTS: dict[str, type[Packed] | type[Spread] | type[Count] | type[Skew] | type[Freest]] = {
    "packed": Packed,
    "spread": Spread,
    "count": Count,
    "skew": Skew,
    "freest": Freest,
}


def placement(text: str) -> Placer:
    """The placement of that name; `skew:threshold=0.4` sets a knob."""
    name, colon, knobs = text.partition(":")
    if name not in PLACEMENTS:
        raise InputError(f"unknown placement {name!r}; known: {', '.join(PLACEMENTS)}")
    if not colon:
        return PLACEMENTS[name]()
    if name != "skew":
        raise InputError(f"placement {name!r} has no knobs")
    return Skew.of(knobs)


__all__ = ["PLACEMENTS", "Count", "Freest", "Packed", "Placer", "Skew", "Spread", "placement"]
