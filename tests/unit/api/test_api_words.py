"""Answers and refusals of the API in words that help: what was new, what had ended, what is wrong."""

from __future__ import annotations

import pytest
from api_site import ALICE, Site

HELD = {"command": ["true"], "hold": True}


def test_a_submission_says_how_much_of_it_is_new(site: Site) -> None:
    client, key = site.as_user(ALICE), {"Idempotency-Key": "k"}
    answers = [client.post("/v1/jobs", json=HELD | {"array": [0, 1]}, headers=key) for _ in "ab"]
    answers.append(client.post("/v1/jobs", json=HELD | {"array": [0, 1, 2]}, headers=key))
    assert [(one.status_code, one.json()["new"]) for one in answers] == [(201, 2), (200, 0), (201, 1)]


def test_verbs_say_which_jobs_had_ended(site: Site) -> None:
    client = site.as_user(ALICE)
    array = client.post("/v1/jobs", json=HELD | {"array": [0, 1]}).json()["jobs"][0]["id"].split("_")[0]
    first = client.post(f"/v1/jobs/{array}_1/cancel").json()["jobs"]
    assert [(row["state"], row["had_ended"], row["stopping_s"]) for row in first] == [("CANCELLED", False, 0.0)]
    for method, path, body in (("PATCH", "", {"priority": 3}), ("POST", "/suspend", None), ("POST", "/cancel", None)):
        rows = client.request(method, f"/v1/jobs/{array}{path}", json=body).json()["jobs"]
        assert [row["had_ended"] for row in rows] == [False, True]


def test_a_reason_that_was_taken_back_is_not_told(site: Site) -> None:
    client = site.as_user(ALICE)
    job = client.post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    site.daemon.scheduler.ask(lambda now_s: ([], site.daemon.scheduler.loop.run_round()))
    assert "held" in client.get(f"/v1/jobs/{job}").json()["reason"]
    (told,) = client.post(f"/v1/jobs/{job}/release").json()["jobs"]
    assert "held" not in told["reason"]
    (told,) = client.post(f"/v1/jobs/{job}/suspend").json()["jobs"]
    assert "suspended" in told["reason"]
    (told,) = client.post(f"/v1/jobs/{job}/resume").json()["jobs"]
    assert "suspended" not in told["reason"]


def test_states_may_be_written_small(site: Site) -> None:
    client = site.as_user(ALICE)
    job = client.post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    for state in ("pending", "PENDING", "Pending"):
        assert [row["id"] for row in client.get("/v1/jobs", params={"state": state}).json()["jobs"]] == [job]
    assert client.get("/v1/jobs", params={"state": "running"}).json() == {"jobs": []}
    assert client.get("/v1/jobs", params={"state": "asleep"}).status_code == 422


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a/b"}, "name: has characters that it may not have"),
        ({"name": "x" * 300}, "name: is longer than 200 characters"),
        ({"weight": 0}, "weight: must be more than 0"),
        ({"deadline_s": -1}, "deadline_s: must be at least 0"),
        ({"priority": 10**12}, "priority: must be at most 1"),
        ({"colour": 1}, "colour: there is no such field"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_plainly(site: Site, changes: dict[str, object], told: str) -> None:
    client = site.as_user(ALICE)
    job = client.post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    answer = client.patch(f"/v1/jobs/{job}", json=changes)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(told)


def test_a_body_has_to_be_announced_as_json(site: Site) -> None:
    client = site.as_user(ALICE)
    for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = client.post("/v1/jobs", content=b'{"command": ["true"]}', headers=kind)
        assert answer.status_code == 422
        assert "Content-Type: application/json" in answer.json()["error"]
    announced = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/jobs", content=b'{"command": ["true"]}', headers=announced).status_code == 201
    assert "Content-Type" not in client.post("/v1/jobs", json={"command": "true"}).json()["error"]
    assert "Content-Type" not in client.post("/v1/jobs").json()["error"]


def test_what_is_expected_of_a_job_says_where_it_comes_from(site: Site) -> None:
    client = site.as_user(ALICE)
    job = client.post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    known = client.post("/v1/jobs", json=HELD | {"expected_s": 600}).json()["jobs"][0]["id"]
    estimates = [client.get(f"/v1/jobs/{one}").json()["estimate"] for one in (job, known)]
    assert [one["source"] for one in estimates] == ["nothing; an hour is assumed", "its owner's estimate"]
    assert [one["expected_s"] for one in estimates] == [3600.0, 600.0]
    # No end was scored yet, so an estimate is rough.
    assert {(one["low_s"], one["high_s"], one["sure"]) for one in estimates} == {(None, None, None)}
    client.post(f"/v1/jobs/{job}/cancel")
    assert client.get(f"/v1/jobs/{job}").json()["estimate"] is None


def test_the_record_of_promises_can_be_asked_for(site: Site) -> None:
    client = site.as_user(ALICE)
    job = client.post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    # A job that is held is promised nothing.
    estimate = client.get(f"/v1/jobs/{job}/why", params={"told": "submit"}).json()["estimate"]
    assert (estimate["start_s"], estimate["start_between_s"], estimate["sure"]) == (None, None, None)
    nothing = {"sure": 0.8, "latest": 0, "open": 0, "policies": [], "users": []}
    none_scored = {"scored": 0, "held": 0, "shown": False}
    none_scored["why"] = "intervals are shown after 30 scored forecasts, now 0"
    intervals = [{"kind": kind, **none_scored} for kind in ("start", "finish")]
    assert client.get("/v1/eta", params={"user": "alice", "since": 5}).json() == nothing | {"intervals": intervals}
    assert client.get(f"/v1/jobs/{job}").json()["promises"] == []
    assert client.get(f"/v1/jobs/{job}/why", params={"told": "everybody"}).status_code == 422
