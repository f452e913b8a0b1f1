"""What the API says after somebody has set the time of day: dates follow it, durations do not, and it is told."""

from __future__ import annotations

import time

import pytest
from api_site import Site

from fairway.cli.live_tables import status_table
from fairway.runtime.daemon.clock import SystemTime
from fairway.testing.waiting import wait_for


class Ahead(SystemTime):
    """The time of this machine, with a time of day that is an hour ahead."""

    def time(self) -> float:
        """The time of day, in seconds since 1970."""
        return super().time() + 3600.0


def test_dates_are_shown_by_the_time_of_day_as_it_is_set_now(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = site.daemon.scheduler.clock
    before = site.own.post("/v1/jobs", json={"command": ["true"]}).json()["jobs"][0]
    since_s = site.own.get("/v1/status").json()["since_s"]
    monkeypatch.setattr(clock, "source", Ahead())
    wait_for(lambda: clock.jump is not None, "the step to be noticed")
    (row,) = site.own.get("/v1/jobs").json()["jobs"]
    assert row["submitted_s"] == pytest.approx(before["submitted_s"] + 3600.0, abs=1.0)
    assert site.own.get(f"/v1/jobs/{row['id']}").json()["submitted_s"] == row["submitted_s"]
    for after_s, shown in ((-10.0, 1), (10.0, 0)):
        since = {"since": row["submitted_s"] + after_s}
        assert len(site.own.get("/v1/jobs", params=since).json()["jobs"]) == shown
    status = site.own.get("/v1/status").json()
    assert status["now_s"] == pytest.approx(time.time() + 3600.0, abs=600.0)
    assert status["since_s"] == pytest.approx(since_s + 3600.0, abs=1.0)
    assert "the time of day was set ahead by 60.0 minutes" in status["clock"]
    assert status_table(status).row_count == status_table({**status, "clock": ""}).row_count + 1
    for _ in range(2):
        site.daemon._watch.look()
    assert capsys.readouterr().err.count("the time of day was set ahead") == 1
