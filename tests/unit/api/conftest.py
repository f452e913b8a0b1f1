"""Fixtures for tests of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_site import OPERA, Never, Site

from fairway.api.app import make_app
from fairway.api.people import Access
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.runtime.processes.local import LocalSite


@pytest.fixture
def new_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """Make sites, with the rules that a test wants. `look`: they look for the programs of jobs."""
    made: list[Daemon] = []

    def make(*, look: bool = False, **rules: Any) -> Site:
        if not look:
            # Tests name programs and directories as they like; nothing of them is ever started.
            monkeypatch.setattr(LocalSite, "start_problem", lambda site, wish: "")
        daemon = Daemon(Options(tmp_path / f"state-{len(made)}", policy="fifo", gpus="4"))
        daemon.scheduler.guard.use(Never())
        made.append(daemon)
        rules = {"own_uid": 4321, "open_to_all": True, "operators": lambda: {str(OPERA)}} | rules
        site = Site(daemon, make_app(daemon, Access(**rules)))
        daemon.start()
        return site

    yield make
    for daemon in made:
        daemon.close()


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    """A scheduler of no special user that everybody may submit to."""
    return new_site()
