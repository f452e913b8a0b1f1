"""A scheduler behind its API, without a network: requests come from whichever user a test says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from fairway.core.decision import Decision, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.runtime.daemon.daemon import Daemon

ALICE, BOB, OPERA = 70_001, 70_002, 70_003
"""User ids that are nobody's."""


class Never:
    """A policy that starts nobody, so that tests of the API start no processes."""

    name = "never"
    knows: frozenset[str] = frozenset()
    round_s = 0.0

    def decide(self, snapshot: Snapshot) -> Decision:
        return nothing_granted(len(snapshot))


@dataclass
class Site:
    """A daemon and its application; `as_user` gives somebody's connection."""

    daemon: Daemon
    app: FastAPI

    def as_user(self, uid: int) -> TestClient:
        return TestClient(self.app, client=(f"uid:{uid}", 1), raise_server_exceptions=False)

    @property
    def own(self) -> TestClient:
        return self.as_user(os.geteuid())


def fingerprint(daemon: Daemon) -> tuple[Any, ...]:
    """All that a refused request must not change."""
    scheduler = daemon.scheduler
    jobs = [(one.id, str(one.state), one.held, one.suspended, one.request) for one in scheduler.store]
    return scheduler.policy_text, scheduler.guard.policy.name, scheduler.store.next_id, jobs
