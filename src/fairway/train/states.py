"""What a resumed training job needs to know of its measurements: plain JSON values, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

State: TypeAlias = dict[str, Any]
"""JSON values under names; "kind" says what the state belongs to."""


def read_state(state: Mapping[str, Any], kind: str, *names: str) -> tuple[Any, ...]:
    """The named values of a state of this kind; ValueError if it is of another kind."""
    if state.get("kind") != kind:
        raise ValueError(f"this is the state of {state.get('kind')!r}, not of {kind!r}")
    missing = [name for name in names if name not in state]
    if missing:
        raise ValueError(f"the state of {kind!r} lacks {', '.join(missing)}")
    return tuple(state[name] for name in names)
