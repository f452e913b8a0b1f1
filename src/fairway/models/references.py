"""What is assumed of pairs before they are measured: the built-in estimates, and which model stands in for which.

A job whose model the built-in profile knows is its own reference. A job of an unknown model takes the model that it
resembles in what a scheduler sees anyway: how its speed changes from one GPU type to another, and its memory. If even
that is unknown it is a *typical* job, the mean of all models.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from fairway.core import portable
from fairway.core.cluster import GpuType
from fairway.core.hardware import CATALOGUE, known_gpu
from fairway.models.builtin import BuiltinProfile, memory_bytes
from fairway.models.fingerprint import ReferenceTable
from fairway.models.names import ModelNames, ProfileKey

_BUILTIN = BuiltinProfile()
_NAMES = ModelNames(_BUILTIN.models)


class Reference(NamedTuple):
    """A model of the built-in profile at a batch size; "" is the typical job, a batch size of 0 the usual one."""

    model: str
    batch_size: int


TYPICAL = Reference("", 0)


def builtin_kept(a: ProfileKey, b: ProfileKey, gpu_type: str) -> tuple[float, float] | None:
    """What two jobs keep of their speeds by the built-in estimates: zeros if they do not fit, None if unknown."""
    if known_gpu(gpu_type) is None or _NAMES.find(a.model) is None or _NAMES.find(b.model) is None:
        return None
    pair = _BUILTIN.pair_rates(a, b, gpu_type)
    if pair is None:
        return (0.0, 0.0)
    alone = [_BUILTIN.rate(key.model, key.batch_size, gpu_type, key.gpus) for key in (a, b)]
    return (pair[0] / alone[0], pair[1] / alone[1]) if min(alone) > 0 else (0.0, 0.0)


def known_reference(model: str, batch_size: int) -> Reference | None:
    """The reference of a job whose model the built-in profile knows, in any spelling."""
    name = _NAMES.find(model) if model else None
    return None if name is None else Reference(name, max(0, batch_size))


@lru_cache(maxsize=100_000)
def prior(a: Reference, b: Reference, gpu_type: str, gpus: int) -> tuple[float, float]:
    """What two references keep of their speeds on a type of the catalogue; zeros if they do not fit."""
    if a == TYPICAL or b == TYPICAL:
        every_a = [Reference(name, 0) for name in _BUILTIN.models] if a == TYPICAL else [a]
        every_b = [Reference(name, 0) for name in _BUILTIN.models] if b == TYPICAL else [b]
        pairs = [prior(one, other, gpu_type, gpus) for one in every_a for other in every_b]
        fitting = [pair for pair in pairs if min(pair) > 0]
        if not fitting:
            return (0.0, 0.0)
        first, second = np.mean(fitting, axis=0).tolist()
        return (first, second)
    keys = [ProfileKey(one.model, one.batch_size or None, gpus) for one in (a, b)]
    return builtin_kept(keys[0], keys[1], gpu_type) or (0.0, 0.0)


def catalogue_name(gpu: GpuType) -> str:
    """The type of the catalogue that stands for a GPU type: itself, or the one whose speed is nearest."""
    known = known_gpu(gpu.name)
    if known is not None:
        return known.name
    speed = portable.log(gpu.speed) if gpu.speed > 0 else 0.0
    return min(CATALOGUE, key=lambda name: (abs(portable.log(CATALOGUE[name].speed) - speed), name))


def resembling(speeds: tuple[float, ...], memory: int, gpu_types: tuple[str, ...]) -> Reference:
    """The model that is nearest to a job of an unknown model, by what a scheduler sees of it.

    It compares the logarithms of its speeds on the types relative to one another, and of its memory if the job says how
    much it needs (0: it does not).
    """
    usable = [t for t, speed in enumerate(speeds) if speed > 0]
    if len(usable) < 2 and memory <= 0:
        return TYPICAL
    best, found = math.inf, TYPICAL
    for name in _BUILTIN.models:
        rates = _usual_rates(name, gpu_types)
        both = [t for t in usable if rates[t] > 0]
        own, theirs = (portable.log(np.array([values[t] for t in both])) for values in (speeds, rates))
        apart = (own - own.mean()) - (theirs - theirs.mean()) if both else own
        distance = portable.dot(apart, apart)
        distance += len(usable) - len(both)
        if memory > 0:
            more = portable.log(memory / memory_bytes(name, None))
            distance += more * more
        if distance < best:
            best, found = distance, Reference(name, 0)
    return found


@cache
def _usual_rates(model: str, gpu_types: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(_BUILTIN.rate(model, None, gpu_type, 1) for gpu_type in gpu_types)


@cache
def builtin_table(gpu_types: tuple[str, ...]) -> ReferenceTable:
    """All models of the built-in profile at their usual batch sizes, as a table of references."""
    kinds = [ProfileKey(name, None, 1) for name in _BUILTIN.models]
    return ReferenceTable.of(kinds, gpu_types, builtin_kept)
