"""What is made for the web page: all jobs in short, and a forecast for all who look."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from api_site import ALICE, BOB, OPERA, Site

from fairway.api import page_forecast, short_list
from fairway.api.events import Stream
from fairway.api.page_forecast import PageForecast
from fairway.api.what_if import all_ahead
from fairway.core.decision import Decision, nothing_granted
from fairway.core.snapshot import Snapshot
from fairway.policies import make_policy

HELD = {"command": ["python", "train.py"], "hold": True}


class Later:
    """First come, first served, but not before an instant: it starts nothing live."""

    name = "later"
    knows: frozenset[str] = frozenset()
    round_s = 0.0

    def __init__(self, begins_s: float) -> None:
        self._begins_s, self._policy = begins_s, make_policy("fifo")

    def decide(self, snapshot: Snapshot) -> Decision:
        if snapshot.now_s < self._begins_s:
            return nothing_granted(len(snapshot)).waking(self._begins_s)
        return self._policy.decide(snapshot)


def rows_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    """A list by rows, as the page reads it."""
    rows: list[dict[str, Any]] = [{} for _ in told["columns"][0]]
    for field, column in zip(told["fields"], told["columns"], strict=True):
        last = 0
        for row, cell in zip(rows, column, strict=True):
            if field in ("id", "submitted_s") and not isinstance(cell, str):
                last += cell
                row[field] = str(last) if field == "id" else last
            elif field in ("name", "user", "queue", "state", "reason", "command") and isinstance(cell, int):
                row[field] = told["texts"][cell]
            else:
                row[field] = cell
    return rows


def test_the_short_list_says_the_same_as_the_long_one(site: Site) -> None:
    alice, bob = site.as_user(ALICE), site.as_user(BOB)
    alice.post("/v1/jobs", json=HELD | {"name": "a", "gpus": 2, "priority": 3, "steps": 70})
    alice.post("/v1/jobs", json=HELD | {"array": [0, 1], "gpu_share": 0.5})
    bob.post("/v1/jobs", json=HELD | {"name": "<b>", "command": ["echo", "é"]} | {"name": "b"})
    bob.post("/v1/jobs/3/cancel")
    told = alice.get("/v1/page/jobs").json()
    long = alice.get("/v1/jobs").json()["jobs"][::-1]
    rows = rows_of(told)
    assert [row["id"] for row in rows] == ["3", "2_1", "2_0", "1"]
    for short, full in zip(rows, long, strict=True):
        same = ("id", "name", "user", "queue", "state", "reason", "priority", "step", "steps", "command", "gpus_held")
        assert [short[one] for one in same] == [full[one] for one in same]
        assert short["gpus"] == full["gpus"] * full["gpu_share"]
        for date in ("submitted_s", "started_s", "ended_s"):
            assert (short[date] is None) == (full[date] is None)
            assert short[date] is None or abs(short[date] - full[date]) <= 1
    assert told["counts"]["PENDING"] == 3
    assert (told["counts"]["CANCELLED"], told["left_out"]) == (1, 0)
    some = alice.get("/v1/page/jobs?id=1&id=2_1&id=77&id=1").json()
    assert [row["id"] for row in rows_of(some)] == ["2_1", "1"]
    for wrong in (["1"] * 501, ["x"], ["1", ""], ["9" * 30], ["1_"]):
        assert alice.get("/v1/page/jobs", params={"id": wrong}).status_code == 422


def test_a_list_is_made_once_for_all_and_again_after_a_change(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    short, now_s = site.app.state.context.short_list, [0.0]
    monkeypatch.setattr(short, "_now_s", lambda: now_s[0])
    alice, bob = site.as_user(ALICE), site.as_user(BOB)
    alice.post("/v1/jobs", json=HELD)
    first = alice.get("/v1/page/jobs").json()
    alice.post("/v1/jobs", json=HELD)
    assert bob.get("/v1/page/jobs").json() == first, "it counts for a moment, whatever happens"
    now_s[0] = 1.5
    second = bob.get("/v1/page/jobs").json()
    assert [row["id"] for row in rows_of(second)] == ["2", "1"]
    assert second["event"] != first["event"]
    now_s[0] += short_list.OLDEST_S - 0.1
    assert alice.get("/v1/page/jobs").json() == second, "nothing has changed"
    # The events after the first list say what has changed since.
    events = [one["id"] for one in _events(site.app.state.context.stream, first["event"])]
    assert events[-1] == second["event"]


def _events(stream: Stream, last: str) -> list[dict[str, Any]]:
    async def told() -> bytes:
        async for piece in stream.follow(last, quiet_s=0.01):
            if not piece.startswith(b":"):
                return piece
        return b""

    text = asyncio.run(asyncio.wait_for(told(), 10.0)).decode()
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_only_the_latest_jobs_that_have_ended_are_listed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_list, "LATEST", 2)
    client = site.as_user(ALICE)
    client.post("/v1/jobs", json=[HELD] * 5)
    for job in ("2", "1", "4"):
        client.post(f"/v1/jobs/{job}/cancel")
    told = client.get("/v1/page/jobs").json()
    assert ([row["id"] for row in rows_of(told)], told["left_out"]) == (["5", "4", "3", "1"], 1)


def test_private_commands_are_in_nobody_elses_list(new_site: Callable[..., Site]) -> None:
    site = new_site()
    site.daemon.settings.config = replace(site.daemon.settings.config, private=True)
    site.as_user(ALICE).post("/v1/jobs", json=HELD)
    seen = {}
    for uid in (ALICE, BOB, OPERA, BOB, ALICE):
        seen[uid] = rows_of(site.as_user(uid).get("/v1/page/jobs").json())[0]["command"]
        assert rows_of(site.as_user(uid).get("/v1/page/jobs?id=1").json())[0]["command"] == seen[uid]
    assert seen == {ALICE: "python train.py", BOB: "", OPERA: "python train.py"}


def test_numbers_that_jobs_report_cannot_break_the_list(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=HELD)
    progress = site.daemon.scheduler.store[0].progress
    for step, told in ((float("nan"), None), (float("inf"), None), (2.0, 2), (1 / 3, 0.333)):
        progress.step = step
        site.daemon.scheduler.store.changes += 1
        assert rows_of(site.own.get("/v1/page/jobs?id=1").json())[0]["step"] == told


def test_the_last_event_may_be_in_the_address_and_the_header_counts_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    async def follow(last: str | None, **about: Any) -> Any:
        asked.append(last)
        yield b": x\n\n"

    monkeypatch.setattr(site.app.state.context.stream, "follow", follow)
    site.own.get("/v1/events?last=a-1")
    site.own.get("/v1/events?last=a-1", headers={"Last-Event-ID": "a-2"})
    site.own.get("/v1/events")
    assert asked == ["a-1", "a-2", None]


def test_a_forecast_is_made_in_the_background_for_all(site: Site) -> None:
    client = site.as_user(ALICE)
    client.post("/v1/jobs", json=HELD)
    answer = client.get("/v1/forecast")
    while answer.status_code == 202:
        assert answer.json() == {"made_s": None}
        time.sleep(0.01)
        answer = client.get("/v1/forecast")
    told = answer.json()
    assert "held by its owner" in told["jobs"]["1"]["why"]
    assert told["jobs"]["1"]["start_s"] is None
    assert (told["policy"], told["problem"], told["spans"]) == ("fifo", "", [])
    known = site.as_user(BOB).get("/v1/forecast", headers={"If-None-Match": answer.headers["etag"]})
    assert known.status_code == 304


def test_forecasts_take_a_share_of_the_time_only_while_somebody_looks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stream = [0], site.app.state.context.stream

    def make() -> dict[str, Any]:
        made[0] += 1
        if made[0] == 2:
            raise ValueError("no")
        return {"made_s": 1.0}

    forecast = PageForecast(make, stream)
    monkeypatch.setattr(page_forecast, "_PAUSE_S", 0.001)
    assert forecast.look() is None
    assert forecast._thread is not None
    while forecast.look() is None:
        time.sleep(0.001)
    site.as_user(ALICE).post("/v1/jobs", json=HELD)
    assert forecast._is_old(time.monotonic())
    assert made == [1], "the next one is not due yet"
    forecast._due_s = 0.0
    while made == [1]:
        time.sleep(0.001)
    monkeypatch.setattr(page_forecast, "LOOKED_S", -1.0)
    forecast._thread.join(10.0)
    latest = forecast._latest
    assert latest is not None
    assert forecast._thread is None
    assert b"there is no forecast: ValueError: no" in gzip.decompress(latest.content)
    forecast.close()


def test_a_forecast_says_who_comes_on_which_gpu(site: Site) -> None:
    scheduler = site.daemon.scheduler
    site.as_user(ALICE).post("/v1/jobs", json=[{"command": ["true"], "gpus": 4, "expected_s": 60.0}] * 2)
    scheduler.guard.use(Later(scheduler.clock.now_s() + 1000.0))
    told = all_ahead(scheduler, 3.0)
    first, second = told["jobs"]["1"], told["jobs"]["2"]
    assert second["start_s"] >= first["finish_s"] >= first["start_s"] + 59
    spans = [tuple(one) for one in told["spans"]]
    assert {(gpu, job) for gpu, job, *_ in spans} == {(gpu, job) for gpu in range(4) for job in ("1", "2")}
    assert {(from_s, to_s) for _, job, from_s, to_s in spans if job == "2"} == {(second["start_s"], second["finish_s"])}
