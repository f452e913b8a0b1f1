"""Planned node failures from a CSV file with the columns `time_s,node,down_s`."""

from __future__ import annotations

from fairway.core.cluster import Cluster
from fairway.core.errors import InputError
from fairway.core.text_files import read_text
from fairway.simulator.faults import Outage
from fairway.traces.fields import parse_number, shown, split_csv

COLUMNS = ["time_s", "node", "down_s"]


def read_faults(path: str, cluster: Cluster) -> tuple[Outage, ...]:
    """The outages of a file. A node is given by its name or its number from 0; `inf` seconds down means for ever."""
    records = split_csv(read_text(path), path)
    line, header = next(records)
    if [name.strip() for name in header] != COLUMNS:
        found = ",".join(header)
        raise InputError(f"the header must be {','.join(COLUMNS)}, not {shown(found)}", path=path, line=line)
    index_of = {node.name: index for index, node in enumerate(cluster.nodes)}
    outages = []
    for line, cells in records:
        if len(cells) != len(COLUMNS):
            raise InputError(f"{len(cells)} columns instead of {len(COLUMNS)}", path=path, line=line)
        time, node, down = (cell.strip() for cell in cells)
        start_s, down_s = parse_number(time), float("inf") if down.lower() == "inf" else parse_number(down)
        if start_s is None or start_s < 0:
            raise InputError(f"time_s {shown(time)} is not a number of at least 0", path=path, line=line)
        if down_s is None or down_s <= 0:
            raise InputError(f"down_s {shown(down)} is not a positive number or inf", path=path, line=line)
        index = index_of.get(node, int(node) if node.isascii() and node.isdecimal() and len(node) < 10 else -1)
        if not 0 <= index < len(cluster.nodes):
            known = f"{cluster.nodes[0].name} to {cluster.nodes[-1].name}, or 0 to {len(cluster.nodes) - 1}"
            raise InputError(f"unknown node {shown(node)}; known: {known}", path=path, line=line)
        outages.append(Outage(start_s, index, down_s))
    return tuple(outages)
