"""How unevenly the size of a model is spread over its tensors, which decides whether its gang must sit together.

Tiresias (NSDI'19) saw that scattering a gang hurts the models that keep much of their size in one tensor. Parameters
are dealt out to servers one tensor at a time, so the server with a huge tensor carries most of the traffic of every
step, and its network link is the bottleneck as soon as the gang leaves one machine. Models of many tensors of similar
size load all links alike and lose little. The paper's profiler reads the sizes off the network; here they are read off
the model's parameters, or come from a table of well-known networks.

The skew of a model is the largest tensor's share of its size, a number in (0, 1]. When tensors are dealt out to n
servers, the most loaded one carries at least n times the skew of a mean load (`TensorProfile.imbalance` gives the exact
figure). So skew says from how many servers on (1 / skew) the largest tensor alone makes a bottleneck, whatever the
gang.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from fairway.core.errors import InputError
from fairway.models.architectures import ARCHITECTURES
from fairway.models.names import ModelNames

SKEW_LIMIT = 0.25
"""Above this skew a gang is kept together: the largest tensor outweighs the fair load of one of four servers.

Any limit between 0.22 and 0.47 divides the table alike: VGG, AlexNet, the word LSTM, the autoencoder and A3C are above;
ResNet, Inception, BERT, the Transformer and the others are below.
"""
BYTES_PER_ELEMENT = 4

_NAMES = ModelNames(ARCHITECTURES)


class Tensor(NamedTuple):
    """One tensor of a model's parameters."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class TensorProfile:
    """The tensors of a model, in its own order."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if not self.tensors or self.total_bytes <= 0:
            raise InputError("the model has no parameters")

    @cached_property
    def total_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    @cached_property
    def skew(self) -> float:
        """The largest tensor's share of the whole size."""
        return max(tensor.size_bytes for tensor in self.tensors) / self.total_bytes

    def largest(self, count: int) -> tuple[Tensor, ...]:
        """The largest tensors, the largest first."""
        return tuple(sorted(self.tensors, key=lambda tensor: -tensor.size_bytes)[:count])

    def imbalance(self, servers: int) -> float:
        """The load of the most loaded of n parameter servers over the mean load; 1 if all carry the same.

        Tensors are dealt out whole, the largest first, each to the server that has the least so far.
        """
        if servers < 1:
            raise InputError(f"tensors are dealt out to at least 1 server, not {servers}")
        loads = [0] * servers
        for size in sorted((tensor.size_bytes for tensor in self.tensors), reverse=True):
            heapq.heapreplace(loads, loads[0] + size)
        return max(loads) * servers / self.total_bytes


def tensor_profile(module: Any) -> TensorProfile:
    """Read the tensors of anything that lists its parameters as a PyTorch module does.

    `module` has `named_parameters()` or `parameters()`; each parameter has `numel()` and `element_size()`. Frozen
    parameters (`requires_grad` is False) have no gradients to exchange and do not count; a tied parameter counts once.
    """
    found, seen = list[Tensor](), set[int]()
    for name, parameter in _named(module):
        if id(parameter) in seen or getattr(parameter, "requires_grad", True) is False:
            continue
        seen.add(id(parameter))
        try:
            size_bytes = int(parameter.numel()) * int(parameter.element_size())
        except (AttributeError, TypeError):
            kind = type(parameter).__name__
            raise InputError(f"parameter {name!r} is a {kind} without numel() and element_size()") from None
        found.append(Tensor(name, size_bytes))
    return TensorProfile(tuple(found))


def _named(module: Any) -> Iterator[tuple[str, Any]]:
    """The parameters with their names; numbered if the module gives no names."""
    named: Iterable[tuple[str, Any]]
    if callable(getattr(module, "named_parameters", None)):
        named = module.named_parameters()
    elif callable(getattr(module, "parameters", None)):
        named = ((str(number), parameter) for number, parameter in enumerate(module.parameters()))
    else:
        raise InputError(f"a {type(module).__name__} has no parameters()")
    for name, parameter in named:
        yield str(name), parameter


@lru_cache(maxsize=1024)
def known_tensors(model: str) -> TensorProfile | None:
    """The tensors of a model of the built-in table in single precision, under any usual spelling; None if unknown."""
    name = _NAMES.find(model)
    if name is None:
        return None
    return TensorProfile(tuple(Tensor(of, count * BYTES_PER_ELEMENT) for of, count in ARCHITECTURES[name]()))


def known_models() -> tuple[str, ...]:
    """The models of the built-in table."""
    return _NAMES.names
