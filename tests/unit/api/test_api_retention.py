"""Jobs that have ended, as the API has them: listed, exported, deleted. And what may be asked for."""

from __future__ import annotations

import json
import resource
from typing import Any

import pytest
from api_site import ALICE, BOB, Site

from fairway.runtime.daemon.config import Bounds, Config
from fairway.runtime.jobs.store import JobStore

HELD = {"command": ["true"], "hold": True}


def _ended(site: Site, count: int, uid: int = ALICE) -> list[str]:
    """Submit jobs and cancel them."""
    client = site.as_user(uid)
    ids = [row["id"] for row in client.post("/v1/jobs", json=[HELD] * count).json()["jobs"]]
    for name in ids:
        assert client.post(f"/v1/jobs/{name}/cancel").status_code == 200
    return ids


def _rows(answer: Any) -> list[str]:
    return [row["id"] for row in answer.json()["jobs"]]


@pytest.fixture
def few(site: Site) -> JobStore:
    """The store of a scheduler that keeps one ended job in memory."""
    site.daemon.scheduler.store._most_recent = 1
    return site.daemon.scheduler.store


def test_jobs_on_disk_are_listed_with_those_in_memory(site: Site, few: JobStore) -> None:
    ids = _ended(site, 4)
    waiting = site.as_user(BOB).post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    assert len(few) == 2
    own = site.own
    assert _rows(own.get("/v1/jobs")) == [*ids, waiting]
    assert _rows(own.get("/v1/jobs?limit=3")) == [*ids[2:], waiting]
    assert _rows(own.get("/v1/jobs?state=pending")) == [waiting]
    assert _rows(own.get(f"/v1/jobs?user={ALICE}&state=cancelled")) == ids
    assert _rows(own.get("/v1/history")) == ids[::-1]
    assert _rows(own.get("/v1/history?limit=2")) == ids[:1:-1]
    assert own.get(f"/v1/jobs/{ids[0]}").json()["state"] == "CANCELLED"
    assert own.get("/v1/status").json()["jobs"] == own.get("/v1/status").json()["jobs"] | {"CANCELLED": 4, "PENDING": 1}
    shares = {one["user"]: (one["ended"], one["waiting"]) for one in own.get("/v1/share").json()["users"]}
    assert shares == {str(ALICE): (4, 0), str(BOB): (0, 1)}
    again = own.post(f"/v1/jobs/{ids[0]}/cancel").json()["jobs"]
    assert [(row["id"], row["had_ended"]) for row in again] == [(ids[0], True)]


def test_an_array_of_which_some_is_on_disk_is_answered_as_a_whole(site: Site, few: JobStore) -> None:
    client = site.as_user(ALICE)
    tasks = _rows(client.post("/v1/jobs", json=HELD | {"array": [0, 1, 2, 3]}))
    for name in tasks[:3]:
        client.post(f"/v1/jobs/{name}/cancel")
    assert len(few) == 2
    told = client.post("/v1/jobs/1/cancel").json()["jobs"]
    assert [(row["id"], row["state"], row["had_ended"]) for row in told] == [
        (name, "CANCELLED", name != tasks[3]) for name in tasks
    ]
    assert [row["id"] for row in client.get("/v1/jobs/1").json()["tasks"]] == tasks


def test_operators_delete_jobs_after_they_were_exported(site: Site, few: JobStore) -> None:
    ids = _ended(site, 3)
    secret = site.as_user(ALICE).post("/v1/jobs", json=HELD | {"env": {"A": "hidden"}}).json()["jobs"][0]["id"]
    site.as_user(ALICE).post(f"/v1/jobs/{secret}/cancel")
    answer = site.own.get("/v1/history/export")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["id"] for line in lines] == [secret, *ids[::-1]]
    assert lines[0]["request"]["command"] == ["true"]
    assert "hidden" not in answer.text
    assert site.as_user(ALICE).post("/v1/gc", json={"keep": 0}).status_code == 403
    assert site.own.post("/v1/gc", json={}).json() == {"jobs": 0, "awaited": 0, "dry_run": False}
    assert site.own.post("/v1/gc", json={"keep": 1, "dry_run": True}).json()["jobs"] == 3
    assert site.own.post("/v1/gc", json={"keep": 1}).json()["jobs"] == 3
    assert _rows(site.own.get("/v1/jobs")) == [secret]
    assert site.own.get(f"/v1/jobs/{ids[0]}").status_code == 404
    assert site.own.post("/v1/gc", json={"older_s": 0.0}).json()["jobs"] == 1
    assert _rows(site.own.get("/v1/jobs")) == []
    assert site.as_user(ALICE).post("/v1/jobs", json=HELD).json()["jobs"][0]["id"] == "5"
    assert site.own.post("/v1/gc", json={"keep": -1}).status_code == 422


def test_a_large_environment_of_an_array_is_kept_once(site: Site) -> None:
    env = {f"V{at}": "x" * 90_000 for at in range(10)}
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client = site.as_user(ALICE)
    answer = client.post("/v1/jobs", json=HELD | {"array": list(range(4000)), "env": env})
    assert answer.status_code == 201
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200_000
    folder = site.daemon.options.folder
    assert sum(one.stat().st_size for one in folder.glob("journal.db*")) < 50_000_000
    assert client.get("/v1/jobs/1_7").json()["request"]["env"] == env


def test_refusals_name_the_bound(site: Site) -> None:
    site.daemon.settings.config = Config(limits=Bounds(jobs_per_user=2, submissions_per_minute=3))
    client = site.as_user(ALICE)
    answer = client.post("/v1/jobs", json=[HELD] * 3)
    assert (answer.status_code, "`jobs_per_user` under [limits]" in answer.json()["error"]) == (422, True)
    assert client.post("/v1/jobs", json=HELD).status_code == 201
    assert client.post("/v1/jobs", json=HELD).status_code == 201
    answer = client.post("/v1/jobs", json=HELD)
    assert (answer.status_code, "submissions_per_minute" in answer.json()["error"]) == (429, True)
    assert site.as_user(BOB).post("/v1/jobs", json=HELD).status_code == 201
