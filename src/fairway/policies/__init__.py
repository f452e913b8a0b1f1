"""One file per scheduler. A policy is a pure function from a snapshot to a decision.

Every module of this package is loaded, so a new policy is a new file and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fairway.policies.registry import knobs, load_plugin, make_policy, policies, register

for _module in sorted(found.name for found in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")

__all__ = ["knobs", "load_plugin", "make_policy", "policies", "register"]
