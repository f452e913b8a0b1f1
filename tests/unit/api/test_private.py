"""What others see of a job: everything but its environment and scripts, or with `private = true` hardly anything."""

from __future__ import annotations

from typing import Any

from api_site import ALICE, BOB, OPERA, Site

JOB = {"command": ["python", "secret.py"], "cwd": "/home/alice", "hold": True}


def make_private(site: Site) -> None:
    (site.daemon.options.folder / "fairway.toml").write_text("private = true\n")
    assert site.as_user(OPERA).post("/v1/reload").status_code == 200


def shown(site: Site, uid: int) -> dict[str, Any]:
    told: dict[str, Any] = site.as_user(uid).get("/v1/jobs/1").json()
    return told


def test_a_script_is_told_to_its_owner_and_to_operators_only(site: Site) -> None:
    script = {"command": ["bash", "-c", "export KEY=hunter2"], "shown": "- (a script from standard input)"}
    site.as_user(ALICE).post("/v1/jobs", json=JOB | script)
    answer = site.as_user(BOB).get("/v1/jobs/1")
    assert "hunter2" not in answer.text
    assert answer.json()["request"]["shown"] == answer.json()["command"] == script["shown"]
    for uid in (ALICE, OPERA):
        assert shown(site, uid)["request"]["command"] == script["command"]


def test_without_the_option_commands_and_logs_are_for_all(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=JOB)
    told = shown(site, BOB)
    assert (told["request"]["command"], told["request"]["cwd"]) == (JOB["command"], JOB["cwd"])
    assert not told["private"]
    assert site.as_user(BOB).get("/v1/jobs/1/logs").status_code == 200


def test_with_it_they_are_for_the_owner_and_operators(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=JOB)
    make_private(site)
    bob = site.as_user(BOB)
    told = shown(site, BOB)
    assert told["private"]
    assert told["command"] == ""
    assert told["request"].keys().isdisjoint({"command", "shown", "cwd", "env"})
    for path in ("/v1/jobs", "/v1/jobs/1", "/v1/history"):
        assert "secret.py" not in bob.get(path).text
    assert bob.get("/v1/jobs").json()["jobs"][0]["command"] == ""
    refused = bob.get("/v1/jobs/1/logs")
    assert refused.status_code == 403
    assert "logs are private here" in refused.json()["error"]
    for uid in (ALICE, OPERA):
        assert shown(site, uid)["request"]["command"] == JOB["command"]
        assert site.as_user(uid).get("/v1/jobs/1/logs").status_code == 200
        assert site.as_user(uid).get("/v1/jobs").json()["jobs"][0]["command"] == "python secret.py"


def test_tasks_of_an_array_are_private_too(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=JOB | {"array": [0, 1]})
    make_private(site)
    assert [one["command"] for one in shown(site, BOB)["tasks"]] == ["", ""]
    assert [one["command"] for one in shown(site, ALICE)["tasks"]] == ["python secret.py"] * 2


def test_why_a_job_did_not_start_and_its_checkpoint_name_no_directory_to_others(site: Site) -> None:
    site.as_user(ALICE).post("/v1/jobs", json=JOB)
    make_private(site)
    (record,) = site.daemon.scheduler.store
    record.progress.checkpoint = "/home/alice/last.pt"
    site.as_user(ALICE).post("/v1/jobs/1/cancel")
    record.reason = "cannot be started: no /home/alice/python"
    for path in (
        "/v1/jobs",
        "/v1/jobs/1",
        "/v1/history",
        "/v1/page/jobs",
        "/v1/page/jobs?id=1",
        "/v1/jobs/1/events",
        "/v1/jobs/1/why",
    ):
        assert "/home" not in site.as_user(BOB).get(path).text, path
    assert site.as_user(BOB).get("/v1/jobs/1").json()["reason"] == "cannot be started"
    assert shown(site, ALICE)["reason"] == record.reason
    assert shown(site, ALICE)["progress"]["checkpoint"] == "/home/alice/last.pt"
