"""Norms of gradients, made of NumPy arrays, torch tensors or numbers, and of sequences or mappings of those.

Arrays are recognised by their methods, so nothing is imported. Every sum is formed in double precision, since a
variance is a small difference of large squared norms and gradients are often kept in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

Gradient: TypeAlias = Any
"""One gradient: an array, a tensor, a number, None (a layer without one), or a sequence or mapping of such."""


def gradients_of(parameters: Iterable[Any]) -> list[Any]:
    """The gradients of `model.parameters()` of torch, in their order; None for a parameter without one."""
    return [parameter.grad for parameter in parameters]


def layers(gradient: Gradient) -> Iterator[Any]:
    """The arrays, tensors, numbers and Nones in a gradient, in order."""
    if gradient is None or hasattr(gradient, "dtype") or isinstance(gradient, Real):
        yield gradient
    elif isinstance(gradient, Iterable) and not isinstance(gradient, str | bytes):
        for part in gradient.values() if isinstance(gradient, Mapping) else gradient:
            yield from layers(part)
    else:
        raise TypeError(f"{type(gradient).__name__} is not a gradient")


def wide(layer: Any) -> Any:
    """A layer as one row of double precision on its device, or as a float. It may share memory with the layer."""
    if not hasattr(layer, "dtype"):
        return float(layer)
    if not hasattr(layer, "detach"):
        if layer.dtype.kind == "c":
            raise TypeError("complex gradients are not supported")
        return layer.astype("float64").reshape(-1)
    if layer.requires_grad and layer.is_leaf:
        # The norm of the weights would be a plausible number, and the mistake would go unnoticed.
        raise TypeError("this is a parameter, not a gradient: pass gradients_of(parameters)")
    if layer.is_complex():
        raise TypeError("complex gradients are not supported")
    dense = layer.detach()
    return (dense.to_dense() if dense.is_sparse else dense).double().reshape(-1)


def copied(gradient: Gradient) -> list[Any]:
    """The layers of a gradient in their own precision and memory: a training loop overwrites gradients in place."""
    return [_copy(layer) for layer in layers(gradient)]


def squared_norm(gradient: Gradient) -> float:
    """The sum of squares of everything in a gradient; infinite or NaN if something in it is.

    >>> squared_norm([3.0, [4.0, None]])
    25.0
    """
    rows = (wide(layer) for layer in layers(gradient) if layer is not None)
    return _total(_dot(row, row) for row in rows)


def squared_norm_of_mean(gradients: Sequence[Gradient]) -> float:
    """The squared norm of the mean of several gradients of the same shapes.

    A layer without a gradient counts as zeros. Layers on several devices are moved to the device of the first.

    >>> squared_norm_of_mean([[1.0, 0.0], [0.0, 1.0]])
    0.5
    """
    together = zip(*(list(layers(gradient)) for gradient in gradients), strict=True)
    sums = (_sum([wide(layer) for layer in same if layer is not None]) for same in together)
    return _total(_dot(row, row) for row in sums if row is not None) / len(gradients) ** 2


def add_scaled(total: Any, layer: Any, factor: float) -> Any:
    """`total + factor * layer` in double precision; `total` may be None for nothing yet."""
    if layer is None:
        return total
    row = wide(layer) * factor
    return row if total is None else _sum([total, row])


def _sum(rows: Sequence[Any]) -> Any:
    """The sum of rows of double precision, on the device of the first; None if there are none."""
    if not rows:
        return None
    total, *others = rows
    for row in others:
        if getattr(row, "shape", ()) != getattr(total, "shape", ()):
            raise ValueError("the gradients differ in shape")
        total = total + (row.to(total.device) if hasattr(row, "detach") else row)
    return total


def _dot(row: Any, other: Any) -> Any:
    return row.dot(other) if hasattr(row, "dot") else row * other


def _total(parts: Iterable[Any]) -> float:
    """The sum of numbers, reading from each device only once: reading a number off a GPU waits for all of its work."""
    here, there = 0.0, dict[Any, Any]()
    for part in parts:
        if not hasattr(part, "detach"):
            here += float(part)
        else:
            there[part.device] = there[part.device] + part if part.device in there else part
    return here + math.fsum(map(float, there.values()))


def _copy(layer: Any) -> Any:
    if hasattr(layer, "detach"):
        return layer.detach().clone()
    return layer.copy() if hasattr(layer, "copy") else layer
