"""Where to cut a model into groups that are copied while earlier ones compute (PipeSwitch, OSDI 2020).

Each copy has a fixed overhead, so few groups are good. A group computes only when all of it is there, so many groups
are good. The copy of a group ends at t = t' + overhead + bytes ÷ bandwidth, and its computation at e = max(e', t) + c.
The search is exact: no other cuts let the last group end earlier.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Cuts(NamedTuple):
    """Groups as the number of layers in each, and when the last one ends."""

    sizes: tuple[int, ...]
    end_s: float


class _Partial(NamedTuple):
    """The first layers in groups: when their computation ends, and where each group ends."""

    end_s: float
    cuts: tuple[int, ...]


def end_s(sizes: Sequence[int], transfers_s: Sequence[float], computes_s: Sequence[float], overhead_s: float) -> float:
    """When the last group ends, if layers are cut like this."""
    arrived_s = ended_s = 0.0
    at = 0
    for size in sizes:
        arrived_s += overhead_s + sum(transfers_s[at : at + size])
        ended_s = max(ended_s, arrived_s) + sum(computes_s[at : at + size])
        at += size
    return ended_s


def best_cuts(transfers_s: Sequence[float], computes_s: Sequence[float], overhead_s: float) -> Cuts:
    """The groups that end first. Of equally good ones, those with the fewest copies.

    What is known about the first layers in k groups is when their computation ends: their copies end at the same time
    in all cases. Two rules keep the search short. A start is dropped if it cannot beat the best result even if
    nothing but computation followed. And a group is never smaller than what arrives while the groups before it compute:
    a larger one is free.
    """
    layers = len(transfers_s)
    if not layers:
        return Cuts((), 0.0)
    moved_s, computed_s = [0.0, *accumulate(transfers_s)], [0.0, *accumulate(computes_s)]
    best = _simple(transfers_s, computes_s, overhead_s)
    level: dict[int, _Partial] = {0: _Partial(0.0, ())}
    for groups in range(1, layers + 1):
        following: dict[int, _Partial] = {}
        for begin, start in level.items():
            if start.end_s + computed_s[layers] - computed_s[begin] >= best.end_s:
                continue
            # What has arrived when the layers before have computed.
            free = bisect_right(moved_s, start.end_s - groups * overhead_s) - 1
            for end in range(min(max(begin + 1, free), layers), layers + 1):
                ended_s = max(start.end_s, groups * overhead_s + moved_s[end]) + computed_s[end] - computed_s[begin]
                if ended_s + computed_s[layers] - computed_s[end] >= best.end_s:
                    break
                if end == layers:
                    best = Cuts(_sizes((*start.cuts, end)), ended_s)
                elif end not in following or ended_s < following[end].end_s:
                    following[end] = _Partial(ended_s, (*start.cuts, end))
        level = following
    return best


def _simple(transfers_s: Sequence[float], computes_s: Sequence[float], overhead_s: float) -> Cuts:
    """The better of one group, and a group for each layer."""
    layers = len(transfers_s)
    both = [(layers,), (1,) * layers]
    return min(
        (Cuts(one, end_s(one, transfers_s, computes_s, overhead_s)) for one in both), key=lambda cuts: cuts.end_s
    )


def _sizes(ends: Sequence[int]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in zip((0, *ends), ends, strict=False))
