"""One file per scheduler. A policy is a pure function from a snapshot to a decision."""

from __future__ import annotations

from fairway.policies import fifo, las, proportional, shortest
from fairway.policies.registry import knobs, load_plugin, make_policy, policies, register

__all__ = ["fifo", "knobs", "las", "load_plugin", "make_policy", "policies", "proportional", "register", "shortest"]
