"""Tenants as a user writes them: a TOML file with a table for each tenant.

[tenants.vision]
cells = ["2x8", "1x4"]    # two nodes of 8 GPUs and half of one; "v100:2x8" where GPU types are mixed
queues = ["vision"]       # whose jobs are its own; without this, the queue that has the tenant's name
users = ["ann"]           # and those of these users in queues that nobody claims
"""

from __future__ import annotations

from typing import Any

from fairway.core.errors import InputError
from fairway.core.tenant import CellSpec, TenantSpec
from fairway.core.text_files import read_text
from fairway.traces.cluster_files import parse_toml
from fairway.traces.fields import shown

_KEYS = ("cells", "queues", "users")


def read_tenants(path: str) -> tuple[TenantSpec, ...]:
    """The tenants that a file describes; a malformed one is an `InputError` of one line."""
    document = parse_toml(read_text(path), path)
    for key in document:
        if key != "tenants":
            raise InputError(f"unknown key {shown(key)}; known: tenants", path=path)
    tables = document.get("tenants")
    if not isinstance(tables, dict) or not tables:
        raise InputError("there are no tenants; write at least one [tenants.NAME]", path=path)
    try:
        return tuple(_tenant(name, table) for name, table in tables.items())
    except InputError as error:
        raise InputError(error.message, path=path) from None


def _tenant(name: str, table: Any) -> TenantSpec:
    if not isinstance(table, dict):
        raise InputError(f"tenants.{name} is not a table")
    for key in table:
        if key not in _KEYS:
            raise InputError(f"tenants.{name}: unknown key {shown(key)}; known: {', '.join(_KEYS)}")
    lists = {key: _texts(name, key, table[key]) for key in table}
    try:
        cells = tuple(CellSpec.of(text) for text in lists.pop("cells", ()))
    except InputError as error:
        raise InputError(f"tenants.{name}: cells: {error.message}") from None
    return TenantSpec(name, cells, **lists)


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise InputError(f"tenants.{name}: {key} {shown(value)} is not a list of one or more texts")
    return tuple(value)
