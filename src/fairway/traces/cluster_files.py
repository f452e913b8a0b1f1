"""Clusters as a user names them: `v100:16x4` in line, a TOML file, or the node lists of public traces.

In line, `v100:32` is one pool of 32 GPUs (a single node) and `v100:16x4` is 16 nodes of 4; commas join several.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from fairway.core.cluster import MAX_GPUS, Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.core.hardware import GIB, known_gpu, known_names
from fairway.core.text_files import read_text
from fairway.traces.fields import csv_table, shown, split_csv, table

TIRESIAS_CLUSTER_COLUMNS = ("num_switch", "num_node_p_switch", "num_gpu_p_node")
ALIBABA_NODE_COLUMNS = ("sn", "gpu", "model")

_INLINE = re.compile(r"(?P<type>[A-Za-z][\w.+-]*):(?P<first>[0-9]+)(?:x(?P<second>[0-9]+))?", re.ASCII)
_NODE_KEYS: dict[str, type] = {"type": str, "count": int, "gpus": int, "rack": str, "name": str}
_TYPE_KEYS = ("memory_gib", "price_per_hour", "speed")


def read_cluster(spec: str) -> Cluster:
    """The cluster that a specification or a file describes; a malformed one is an `InputError` of one line."""
    text = spec.strip()
    if not text:
        raise InputError("the cluster is empty; give something like v100:16x4 or a file")
    if text.lower().endswith((".toml", ".csv")) or "/" in text or _is_file(text):
        return _from_file(text)
    nodes = _Nodes()
    for part in text.split(","):
        _add_inline(nodes, part.strip(), text)
    return nodes.cluster(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # too long for a file name
        return False


class _Nodes:
    """Collects nodes: numbers them by type, and stops before a typing error fills the memory."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self.nodes: list[Node] = []
        self._gpus = 0
        self._next: Counter[str] = Counter()
        self._names: set[str] = set()

    def add(
        self, kind: str, count: int, gpus: int, *, prefix: str = "", rack: str = "", line: int | None = None
    ) -> None:
        self._check_size(count * gpus, line)
        prefix = prefix or kind
        for _ in range(count):
            self.add_named(f"{prefix}-{self._next[prefix]}", kind, gpus, rack=rack, line=line)
            self._next[prefix] += 1

    def add_named(self, name: str, kind: str, gpus: int, *, rack: str = "", line: int | None = None) -> None:
        if name in self._names:
            raise InputError(f"two nodes are called {shown(name)}", path=self.path, line=line)
        self._check_size(gpus, line)
        self._names.add(name)
        self._gpus += gpus
        self.nodes.append(Node(name, kind, gpus, rack))

    def _check_size(self, more_gpus: int, line: int | None) -> None:
        if self._gpus + more_gpus > MAX_GPUS:
            raise InputError(f"the cluster has more than {MAX_GPUS} GPUs", path=self.path, line=line)

    def cluster(self, text: str, types: list[GpuType] | None = None) -> Cluster:
        try:
            return Cluster.of(self.nodes, types, text)
        except InputError as error:
            raise InputError(error.message, path=self.path) from None


def _add_inline(nodes: _Nodes, part: str, whole: str) -> None:
    match = _INLINE.fullmatch(part)
    if match is None:
        raise InputError(f"cluster {shown(whole)}: {shown(part)} is not TYPE:GPUS or TYPE:NODESxGPUS, like v100:16x4")
    kind = match["type"].lower()
    if known_gpu(kind) is None:
        raise InputError(f"cluster {shown(whole)}: unknown GPU type {shown(kind)}; known: {known_names()}")
    numbers = [text.lstrip("0") or "0" for text in (match["first"], match["second"]) if text is not None]
    if "0" in numbers:
        raise InputError(f"cluster {shown(whole)}: {shown(part)} has no GPUs")
    if any(len(number) > len(str(MAX_GPUS)) for number in numbers):
        raise InputError(f"cluster {shown(whole)}: the cluster has more than {MAX_GPUS} GPUs")
    count, gpus = (1, int(numbers[0])) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))
    nodes.add(kind, count, gpus)


def _from_file(path: str) -> Cluster:
    text = read_text(path)
    if path.lower().endswith(".toml"):
        return _from_toml(text, path)
    columns = set(table(split_csv(text, path), path).columns)
    if set(TIRESIAS_CLUSTER_COLUMNS) <= columns:
        return _from_tiresias(text, path)
    if set(ALIBABA_NODE_COLUMNS) <= columns:
        return _from_alibaba(text, path)
    known = f"{', '.join(TIRESIAS_CLUSTER_COLUMNS)} (Tiresias) or {', '.join(ALIBABA_NODE_COLUMNS)} (Alibaba)"
    seen = ", ".join(shown(name)[1:-1] for name in sorted(columns)[:20])
    raise InputError(f"this is no cluster file; columns seen: {seen}; expected {known}", path=path, line=1)


def _from_tiresias(text: str, path: str) -> Cluster:
    """Switches become racks. The simulator never names a GPU type, so its nodes are V100s."""
    nodes, switches = _Nodes(path), 0
    for row in csv_table(text, path, TIRESIAS_CLUSTER_COLUMNS):
        count, gpus = row.gpus("num_node_p_switch"), row.gpus("num_gpu_p_node")
        for _ in range(row.gpus("num_switch")):
            nodes.add("v100", count, gpus, rack=f"switch-{switches}", line=row.line)
            switches += 1
    return nodes.cluster(path)


def _from_alibaba(text: str, path: str) -> Cluster:
    """Alibaba's node list (`openb_node_list_*.csv`); nodes without a GPU are left out."""
    nodes = _Nodes(path)
    for row in csv_table(text, path, ALIBABA_NODE_COLUMNS):
        gpus = row.gpus("gpu", at_least=0)
        if gpus == 0:
            continue
        kind = row.required("model").lower()
        if known_gpu(kind) is None:
            raise row.error(f"unknown GPU type {shown(kind)}; known: {known_names()}")
        nodes.add_named(row.required("sn"), kind, gpus, line=row.line)
    return nodes.cluster(path)


def _from_toml(text: str, path: str) -> Cluster:
    document = parse_toml(text, path)
    unknown = [key for key in document if key not in ("nodes", "types")]
    if unknown:
        raise InputError(f"unknown key {shown(unknown[0])}; known: nodes, types", path=path)
    tables = document.get("types", {})
    if not isinstance(tables, dict):
        raise InputError("types is not a table; write [types.NAME]", path=path)
    types = []
    for name, entry in tables.items():
        line = _header_line(text, rf"types\s*\.\s*[\"']?{re.escape(name)}[\"']?", 0)
        types.append(_toml_type(name, entry, path, line))
    entries = document.get("nodes", [])
    if not isinstance(entries, list) or not entries:
        raise InputError("there are no nodes; write at least one [[nodes]]", path=path)
    nodes, declared = _Nodes(path), {kind.name for kind in types}
    for index, entry in enumerate(entries):
        _add_toml_nodes(nodes, entry, declared, _header_line(text, r"\[\s*nodes\s*\]", index))
    return nodes.cluster(path, types)


def parse_toml(text: str, path: str) -> dict[str, Any]:
    """A TOML document; a mistake in it is an `InputError` that names the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)$", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        message = re.sub(r" \(at [^()]*\)$", "", str(error))
        raise InputError(f"this is not valid TOML: {message}", path=path, line=line) from None
    except (ValueError, RecursionError):
        raise InputError("this is not valid TOML: a number is too long or the nesting too deep", path=path) from None


def _header_line(text: str, pattern: str, index: int) -> int | None:
    """The line of the index-th `[...]` header that matches; None if the table is written in another way."""
    lines = [n for n, line in enumerate(text.split("\n"), start=1) if re.match(rf"\s*\[\s*{pattern}\s*\]", line)]
    return lines[index] if index < len(lines) else None


def _add_toml_nodes(nodes: _Nodes, entry: Any, declared: set[str], line: int | None) -> None:
    def wrong(message: str) -> InputError:
        return InputError(f"nodes: {message}", path=nodes.path, line=line)

    if not isinstance(entry, dict):
        raise wrong("expected a table")
    for key, value in entry.items():
        if key not in _NODE_KEYS:
            raise wrong(f"unknown key {shown(key)}; known: {', '.join(_NODE_KEYS)}")
        if type(value) is not _NODE_KEYS[key]:
            raise wrong(f"{key} {shown(value)} is not {'a text' if _NODE_KEYS[key] is str else 'a whole number'}")
    for key in ("type", "gpus"):
        if key not in entry:
            raise wrong(f"the key {key!r} is missing")
    kind, count, gpus = entry["type"].lower(), entry.get("count", 1), entry["gpus"]
    if kind not in declared and known_gpu(kind) is None:
        raise wrong(f"unknown GPU type {shown(kind)}; known: {known_names()}; describe others in [types.NAME]")
    for key, number in (("count", count), ("gpus", gpus)):
        if number < 1:
            raise wrong(f"{key} {number} is less than 1")
    rack, name = entry.get("rack", ""), entry.get("name", "")
    if name and count == 1:
        nodes.add_named(name, kind, gpus, rack=rack, line=line)
    else:
        nodes.add(kind, count, gpus, prefix=name, rack=rack, line=line)


def _toml_type(name: str, entry: Any, path: str, line: int | None) -> GpuType:
    """A GPU type: missing figures come from the catalogue, and an unknown type must give memory and speed."""
    if not isinstance(entry, dict):
        raise InputError(f"types.{name} is not a table", path=path, line=line)
    for key, value in entry.items():
        if key not in _TYPE_KEYS:
            message = f"types.{name}: unknown key {shown(key)}; known: {', '.join(_TYPE_KEYS)}"
            raise InputError(message, path=path, line=line)
        if type(value) not in (int, float) or not 0 <= value <= 1e9:
            raise InputError(f"types.{name}: {key} {shown(value)} is not a number of at least 0", path=path, line=line)
    known = known_gpu(name)
    if known is None and not {"memory_gib", "speed"} <= set(entry):
        raise InputError(f"types.{name}: an unknown GPU type needs memory_gib and speed", path=path, line=line)
    if entry.get("speed") == 0:
        raise InputError(f"types.{name}: speed 0 is not a positive number", path=path, line=line)
    memory = int(entry["memory_gib"] * GIB) if "memory_gib" in entry else known.memory_bytes if known else 0
    price = entry.get("price_per_hour", known.price_per_h if known else 0.0)
    speed = entry.get("speed", known.speed if known else 1.0)
    return GpuType(name.lower(), memory, float(price), float(speed))
