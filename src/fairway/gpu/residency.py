"""The state of a job, on the device or in host memory, and how it moves between them while jobs compute.

Parameters, buffers and optimiser state are packed into flat buffers, one for each group of layers, which have a twin
in pinned host memory. Tensors are views of these buffers and stay the same objects. A buffer that has left the device
is only a storage without memory, so moving costs one call and one copy for each buffer, whatever the number of tensors.

A job that comes is copied group by group on a stream of its own, in the order in which the forward pass needs them
(PipeSwitch). Before a layer computes, its stream waits for the groups of that layer; before the optimiser steps, for
those of its state. A job that leaves is copied back while the next one computes, and only if it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fairway.gpu.device import Device, Mark, Stream, Tensor
from fairway.gpu.grouping import best_cuts

ALIGN_BYTES = 512
"""Tensors begin at multiples of this, as those of torch's allocator do."""
COPY_BYTES_PER_S = 54e9
COPY_OVERHEAD_S = 150e-6
"""What a group costs beside its bytes: on the copy engine, and on the host, which launches its copies in and out."""
OPTIMIZER_GROUP_BYTES = 128e6
"""An optimiser needs all of its state at once, so its groups are as large as is good for a copy."""

Module = Any


@dataclass
class Flat:
    """A buffer on the device, its twin in host memory, and the tensors in it."""

    device: Tensor
    host: Tensor
    size: int
    tensors: list[Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    trains: bool = False

    def has_changed(self) -> bool:
        """Whether the device may have something that the host does not. What an optimiser works on always may."""
        return self.trains or self.versions != [tensor._version for tensor in self.tensors]

    def note(self) -> None:
        """The host has what the device has."""
        self.versions = [tensor._version for tensor in self.tensors]


@dataclass
class Group:
    """Buffers that are copied together. `arrived` is the mark of their copy, until somebody has waited for it."""

    flats: list[Flat]
    here: bool = True
    arrived: Mark | None = None

    @property
    def size(self) -> int:
        return sum(flat.size for flat in self.flats)


@dataclass
class CalledLayer:
    """A module that is called in the forward pass, and the tensors that nothing needs before it."""

    module: Module
    tensors: list[Tensor]
    compute_s: float = 0.0

    @property
    def size(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class CopyStreams:
    """The streams on which all jobs of a device are copied to it and back. Both directions run at the same time."""

    def __init__(self, device: Device) -> None:
        self.into, self.back = device.new_stream(), device.new_stream()


class CallOrder:
    """Notes the modules of a model in the order of their first calls, while a step runs."""

    def __init__(self, device: Device, model: Module) -> None:
        self._device = device
        self._first: dict[Module, Mark] = {}
        self._hooks = [module.register_forward_pre_hook(self._note) for module in model.modules()]

    def _note(self, module: Module, _: Any) -> None:
        if module not in self._first:
            self._first[module] = self._device.mark(self._device.stream())

    def end(self) -> dict[Module, Mark]:
        """Stop. The modules that were called, with the marks of their beginnings."""
        for hook in self._hooks:
            hook.remove()
        return self._first


def layers_of(device: Device, model: Module, called: Mapping[Module, Mark]) -> list[CalledLayer]:
    """The layers of a model in the order of their calls.

    The tensors of a module that is not called itself (its parent uses them) belong to the nearest parent that is.
    """
    layers = {module: CalledLayer(module, []) for module in (*called, model)}
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own:
            layers[_caller(model, name, layers)].tensors += own
    found = [layer for layer in layers.values() if layer.tensors]
    device.synchronize()
    for layer, following in pairwise(found):
        if layer.module in called and following.module in called:
            layer.compute_s = device.seconds(called[layer.module], called[following.module])
    return found


def can_be_followed(model: Module, called: Mapping[Module, Mark]) -> bool:
    """Whether each module with tensors, or one around it, is called: only then does somebody wait for them."""
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and _caller(model, name, called) not in called:
            return False
    return True


def _caller(model: Module, name: str, called: Container[Module]) -> Module:
    """The nearest module that is called, from the one of this name outward; the model itself if there is none."""
    while True:
        module = model.get_submodule(name)
        if module in called or not name:
            return module
        name = name.rpartition(".")[0]


class MovableState:
    """The state of one job. It is made when the job is on the device and has made a step.

    `called` is what `CallOrder` found in that step.
    """

    def __init__(
        self,
        device: Device,
        copies: CopyStreams,
        model: Module,
        optimizer: Any,
        called: Mapping[Module, Mark],
    ) -> None:
        self._device = device
        self._optimizer = optimizer
        self._copies = copies
        self._written: Mark | None = None
        self._places: dict[int, int] = {}
        self._parameters = list(model.parameters())
        layers = layers_of(device, model, called)
        transfers_s = [one.size / COPY_BYTES_PER_S for one in layers]
        cuts = best_cuts(transfers_s, [one.compute_s for one in layers], COPY_OVERHEAD_S)
        self.groups: list[Group] = []
        self.first_module = layers[0].module if layers else model
        self._pack_layers(layers, cuts.sizes)
        self.forward_groups = len(self.groups)
        self._pack_optimizer()
        self._hooks = [one.module.register_forward_pre_hook(self._before(self._needs(one.tensors))) for one in layers]
        if optimizer is not None:
            rest = range(self.forward_groups, len(self.groups))
            self._hooks.append(optimizer.register_step_pre_hook(self._before(tuple(rest))))

    @property
    def size(self) -> int:
        """The bytes of the state."""
        return sum(group.size for group in self.groups)

    @property
    def here_bytes(self) -> int:
        """What of it is on the device, or on the way there."""
        return sum(group.size for group in self.groups if group.here)

    @property
    def is_resident(self) -> bool:
        """Whether all of it is on the device, or on the way there."""
        return all(group.here for group in self.groups)

    def load(self, most_bytes: float = float("inf"), after: Mark | None = None) -> None:
        """Begin to copy what is not on the device, first groups first, as long as it is at most `most_bytes`.

        `after` is a mark that comes before the copies, if they should not begin at once.
        """
        device, into, left = self._device, self._copies.into, most_bytes
        for mark in (after, self._written):
            if mark is not None:
                device.wait(into, mark)
        with device.on(into):
            for group in self.groups:
                if group.here:
                    continue
                left -= group.size
                if left < 0:
                    return
                try:
                    for flat in group.flats:
                        device.refill(flat.device, flat.size)
                except RuntimeError:
                    for flat in group.flats:
                        device.drop(flat.device)
                    raise
                for flat in group.flats:
                    device.copy(flat.host, flat.device)
                    flat.note()
                group.here, group.arrived = True, device.mark(into)

    def finish_loading(self) -> None:
        """Let the present stream wait for all of the state, for whoever wants to read it outside of a step."""
        self.load()
        self._wait_for(range(len(self.groups)))

    def unload(self, stream: Stream, ended: Mark) -> None:
        """Begin to copy back what has changed after the mark `ended` of the job's `stream`, and leave the device."""
        device, back = self._device, self._copies.back
        for parameter in self._parameters:
            parameter.grad = None
        device.wait(back, ended)
        for group in self.groups:
            if not group.here:
                continue
            if group.arrived is not None:
                # Nobody has used it. The copy that brings it has to be over before its memory is given away.
                device.wait(back, group.arrived)
            else:
                with device.on(back):
                    for flat in group.flats:
                        if flat.has_changed():
                            device.copy(flat.device, flat.host)
            for flat in group.flats:
                device.drop(flat.device, stream, back)
            group.here, group.arrived = False, None
        self._written = device.mark(back)

    def finish_unloading(self) -> None:
        """Wait until the host has all of it."""
        if self._written is not None:
            self._device.finish(self._written)

    def close(self) -> None:
        """The job is gone: leave its modules alone."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, needs: tuple[int, ...]) -> Callable[..., None]:
        def wait(*_: Any) -> None:
            self._wait_for(needs)

        return wait

    def _wait_for(self, needs: Iterable[int]) -> None:
        for number in needs:
            group = self.groups[number]
            if group.arrived is not None:
                self._device.wait(self._device.stream(), group.arrived)
                group.arrived = None

    def _needs(self, tensors: Iterable[Tensor]) -> tuple[int, ...]:
        return tuple(sorted({self._places[id(tensor)] for tensor in tensors if id(tensor) in self._places}))

    def _pack_layers(self, layers: Sequence[CalledLayer], sizes: Sequence[int]) -> None:
        at = 0
        for size in sizes:
            tensors = [tensor for layer in layers[at : at + size] for tensor in layer.tensors]
            self._pack(tensors, trains=self._optimizer is not None and any(one.requires_grad for one in tensors))
            at += size

    def _pack_optimizer(self) -> None:
        """The optimiser's state, in groups of some size. What it keeps on the host stays there."""
        waiting, size = list[Tensor](), 0
        for about in () if self._optimizer is None else self._optimizer.state.values():
            values = [value for value in about.values() if hasattr(value, "untyped_storage")]
            waiting += values
            size += sum(value.numel() * value.element_size() for value in values)
            if size >= OPTIMIZER_GROUP_BYTES:
                self._pack(waiting, trains=True)
                waiting, size = [], 0
        self._pack(waiting, trains=True)

    def _pack(self, tensors: Sequence[Tensor], *, trains: bool) -> None:
        """Move tensors into new flat buffers, if they are on the device and in none yet."""
        number, by_storage = len(self.groups), dict[int, list[Tensor]]()
        for tensor in tensors:
            if str(tensor.device) == self._device.torch_name and id(tensor) not in self._places and tensor.numel():
                self._places[id(tensor)] = number
                by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        alone = [sharing[0] for sharing in by_storage.values() if len(sharing) == 1]
        # cuDNN has the weights of a recurrent network in one storage and looks for them at its beginning.
        together = [sharing for sharing in by_storage.values() if len(sharing) > 1]
        flats = [self._packed([[one] for one in alone], trains=trains)] if alone else []
        flats += [self._packed([sharing], trains=trains) for sharing in together]
        if flats:
            self.groups.append(Group(flats))

    def _packed(self, storages: Sequence[Sequence[Tensor]], *, trains: bool) -> Flat:
        """Tensors, by the storage that they share, in one flat buffer."""
        offsets, size = list[int](), 0
        for sharing in storages:
            offsets.append(size)
            size += -(-sharing[0].untyped_storage().nbytes() // ALIGN_BYTES) * ALIGN_BYTES
        flat = Flat(self._device.buffer(size), self._device.host_buffer(size), size, trains=trains)
        for offset, sharing in zip(offsets, storages, strict=True):
            old = sharing[0].untyped_storage()
            content = flat.device.new_empty(0).set_(old, 0, (old.nbytes(),), (1,))
            flat.device[offset : offset + old.nbytes()].copy_(content)
            for tensor in sharing:
                begin = offset // tensor.element_size() + tensor.storage_offset()
                view = tensor.detach().new_empty(0)
                tensor.data = view.set_(flat.device.untyped_storage(), begin, tensor.size(), tensor.stride())
                flat.tensors.append(tensor)
        flat.host.copy_(flat.device)
        flat.note()
        return flat
