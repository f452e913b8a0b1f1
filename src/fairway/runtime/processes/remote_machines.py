"""The machines of a cluster, and how they become its nodes: known ones keep their numbers, new ones come after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.hardware import known_gpu
from fairway.runtime.processes.site import NodeStatus


class Known(NamedTuple):
    """The nodes that an earlier scheduler knew: type, number of GPUs and name of each, and the names of all GPUs."""

    nodes: Sequence[tuple[str, int, str]] = ()
    devices: Sequence[str] | None = None


NOTHING_KNOWN = Known()


@dataclass(eq=False)
class RemoteMachine:
    """A machine. `gpus` are the numbers of its GPUs in the cluster, `nodes` those of its nodes: one for each GPU type.

    `greeted`: its hands have said hello, and all is well. `ready`: what it should not run has been ended, so that other
    verbs may be sent; that was last asked for at `fenced_s`. `dead`: Ray has given it up.
    """

    name: str
    nodes: Sequence[int] = ()
    gpus: Sequence[int] = ()
    rack: str = ""
    address: str = ""
    interface: str = ""
    hello: Mapping[str, Any] = field(default_factory=dict)
    status: NodeStatus = "unreachable"
    why: str = ""
    greeted: bool = False
    fenced_s: float = 0.0
    ready: bool = False
    told: bool = False
    dead: bool = False
    since_s: float = 0.0
    reserved: bool = True
    seen: Mapping[str, Any] = field(default_factory=dict)
    signs: dict[Path, tuple[bytes, float]] = field(default_factory=dict)


class ClusterLayout:
    """The nodes of a cluster as they are put together. `machines` has type, number of GPUs and machine of each node."""

    def __init__(self, virtual: bool) -> None:
        self.virtual = virtual
        self.nodes: list[Node] = []
        self.machines: list[tuple[str, int, str]] = []
        self.types: dict[str, GpuType] = {}
        self.devices: list[str] = []

    def add_known(self, kind: str, gpus: int, name: str) -> None:
        """Add a node of an earlier scheduler."""
        known = known_gpu(kind)
        usual = GpuType(kind, 0, 0.0, 1.0) if known is None else GpuType.named(kind)
        self.types.setdefault(kind, usual)
        self.nodes.append(Node(name, kind, gpus))
        self.machines.append((kind, gpus, name.removesuffix(f"-{kind}")))

    def fit(self, machine: RemoteMachine) -> str:
        """Add the nodes of a machine, or find them among the known ones. Returns why that is not possible."""
        hello, name = machine.hello, machine.name
        if "problem" in hello:
            return str(hello["problem"])
        if (hello["devices"] is None) != self.virtual:
            return "it has no GPUs" if hello["devices"] is None else "it has real GPUs, and the others are virtual"
        kinds = [self._kind(GpuType(*told)) for told in hello["types"]]
        shape = [(kind.name, gpus, name) for kind, (_, gpus) in zip(kinds, hello["nodes"], strict=True)]
        before = [one for one in self.machines if one[2] == name]
        if before:
            return self._same(machine, shape, before, kinds)
        for kind, (_, gpus, _) in zip(kinds, shape, strict=True):
            self.types.setdefault(kind.name, kind)
            self.nodes.append(Node(name if len(shape) == 1 else f"{name}-{kind.name}", kind.name, gpus, machine.rack))
            self.machines.append((kind.name, gpus, name))
        self.devices += hello["devices"] or ()
        return ""

    def _same(self, machine: RemoteMachine, shape: Any, before: Any, kinds: Sequence[GpuType]) -> str:
        first = [at for at, one in enumerate(self.machines) if one[2] == machine.name]
        start = sum(one[1] for one in self.machines[: first[0]])
        count = sum(one[1] for one in before)
        devices = self.devices[start : start + count]
        if shape != before or (not self.virtual and devices != list(machine.hello["devices"])):
            return "its GPUs are others than before; start the scheduler again to use them"
        for at, kind in zip(first, kinds, strict=True):
            self.types[kind.name] = kind
            node = self.nodes[at]
            self.nodes[at] = Node(node.name, node.gpu_type, node.gpus, machine.rack)
        return ""

    def _kind(self, kind: GpuType) -> GpuType:
        """A GPU type, under a name of its own if GPUs of that name have other memory elsewhere."""
        same = self.types.get(kind.name)
        if same is None or not same.memory_bytes or _gib(same) == _gib(kind):
            return kind
        return GpuType(f"{kind.name}@{_gib(kind)}g", kind.memory_bytes, kind.price_per_h, kind.speed)

    def made(self, text: str) -> Cluster:
        """The cluster."""
        return Cluster.of(self.nodes, self.types.values(), text)


def _gib(kind: GpuType) -> int:
    return round(kind.memory_bytes / 1024**3)
