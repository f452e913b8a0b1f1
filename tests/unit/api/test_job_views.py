"""The data of the job view: events with who did what, courses, and the end of logs; and the cluster's timeline."""

from __future__ import annotations

import pytest
from api_site import ALICE, BOB, OPERA, Site

JOB = {"command": ["python", "secret.py"], "cwd": "/home/alice", "hold": True}


def events(site: Site, uid: int = BOB) -> list[tuple[str, str]]:
    told = site.as_user(uid).get("/v1/jobs/1/events").json()["events"]
    return [(one["what"], one["text"]) for one in told]


def test_events_say_who_did_what(site: Site) -> None:
    alice, opera = site.as_user(ALICE), site.as_user(OPERA)
    alice.post("/v1/jobs", json=JOB)
    alice.post("/v1/jobs/1/release")
    alice.post("/v1/jobs/1/release")
    opera.post("/v1/jobs/1/hold")
    alice.patch("/v1/jobs/1", json={"priority": 3, "limit_s": 60.0, "name": "<b>x"})
    alice.patch("/v1/jobs/1", json={"priority": 3})
    assert events(site) == [
        ("submitted", f"submitted by {ALICE}"),
        ("released", "released by its owner"),
        ("held", f"held by the operator {OPERA}"),
        ("changed", "changed: priority from 0 to 3, limit_s from none to 60, name from '' to '<b>x' by its owner"),
    ]
    opera.post("/v1/jobs/1/cancel")
    opera.post("/v1/jobs/1/cancel")
    assert events(site)[4:] == [("cancelled", f"cancelled by the operator {OPERA}")]


def test_nothing_private_is_told_of_other_users_jobs(site: Site) -> None:
    (site.daemon.options.folder / "fairway.toml").write_text("private = true\n")
    assert site.as_user(OPERA).post("/v1/reload").status_code == 200
    site.as_user(ALICE).post("/v1/jobs", json=JOB)
    for path in ("/v1/jobs/1/events", "/v1/jobs/1/course", "/v1/timeline"):
        answer = site.as_user(BOB).get(path)
        assert answer.status_code == 200
        assert "secret" not in answer.text
        assert "/home/alice" not in answer.text


@pytest.mark.parametrize("what", ["events", "course"])
def test_a_job_that_is_not_there_and_an_array_are_refused(site: Site, what: str) -> None:
    assert site.as_user(BOB).get(f"/v1/jobs/77/{what}").status_code == 404
    site.as_user(ALICE).post("/v1/jobs", json=JOB | {"array": [0, 1]})
    refused = site.as_user(BOB).get(f"/v1/jobs/1/{what}")
    assert refused.status_code == 422
    assert "1 is an array; ask for one of its tasks, such as 1_0" in refused.json()["error"]
    assert site.as_user(BOB).get(f"/v1/jobs/1_0/{what}").status_code == 200


def test_a_job_that_has_reported_nothing_has_an_empty_course(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=JOB)
    told = site.as_user(BOB).get("/v1/jobs/1/course").json()
    assert told == {name: [] for name in ("time_s", "step", "loss", "steps_per_s", "batch_size", "gpus")}


def test_the_timeline_of_an_idle_cluster_has_its_gpus(site: Site) -> None:
    client = site.as_user(BOB)
    told = client.get("/v1/timeline").json()
    assert (len(told["gpus"]), told["spans"], told["jobs"], told["least_s"]) == (4, [], {}, 0.0)
    assert told["to_s"] - told["from_s"] == pytest.approx(4 * 3600.0)
    assert client.get("/v1/timeline?since=-1").status_code == 422
    assert client.get("/v1/timeline?since=nan").status_code == 422


def test_a_log_says_where_it_begins_and_takes_one_kind_of_part(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=JOB)
    client = site.as_user(ALICE)
    answer = client.get("/v1/jobs/1/logs?tail_bytes=1000")
    assert (answer.status_code, answer.text, answer.headers["X-Fairway-Offset"]) == (200, "", "0")
    assert client.get("/v1/jobs/1/logs?tail_bytes=10&tail=3").status_code == 422
    assert client.get("/v1/jobs/1/logs?tail_bytes=10&offset=3").status_code == 422
