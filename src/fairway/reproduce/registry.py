"""All cases: every module of `systems` is loaded, in the order of the alphabet."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from fairway.core.errors import InputError
from fairway.reproduce import systems
from fairway.reproduce.case import Case


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, those of a system together."""
    found: list[Case] = []
    for module in sorted(pkgutil.iter_modules(systems.__path__), key=lambda module: module.name):
        found += import_module(f"{systems.__name__}.{module.name}").CASES
    names = [case.name for case in found]
    assert len(names) == len(set(names)), "two cases have the same name"
    return tuple(found)


def chosen_cases(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases of some systems, or single cases by their names; all without names."""
    if not names:
        return all_cases()
    known = {key.lower(): key for case in all_cases() for key in (case.system, case.name)}
    for name in names:
        if name.lower() not in known:
            near = get_close_matches(name.lower(), known, 1)
            meant = f"; did you mean {known[near[0]]!r}?" if near else f"; there are {', '.join(system_names())}"
            raise InputError(f"there is no system or case {name!r}{meant}")
    wanted = {name.lower() for name in names}
    return tuple(case for case in all_cases() if {case.system.lower(), case.name.lower()} & wanted)


def system_names() -> list[str]:
    """The systems that have cases."""
    return sorted({case.system for case in all_cases()}, key=str.lower)
