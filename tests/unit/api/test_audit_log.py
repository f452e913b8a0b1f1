"""The audit log: every request that changes something is in it, with its answer; nothing waits for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from api_site import ALICE, OPERA, Site
from starlette.testclient import TestClient

from fairway.api import audit_log
from fairway.api.audit_log import FILE, AuditLog

HELD = {"command": ["true"], "hold": True}


def entries(site: Site, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.as_user(OPERA).get(f"/v1/audit{query}").json()["entries"]
    return found


def test_it_says_who_did_what_from_where_and_what_the_answer_was(site: Site) -> None:
    alice = site.as_user(ALICE)
    alice.post("/v1/jobs", json=HELD)
    alice.patch("/v1/jobs/1", json={"priority": 3})
    alice.put("/v1/policy", json={"policy": "fifo"})
    alice.get("/v1/jobs")
    alice.post("/v1/what-if", json={})
    submitted, updated, refused = entries(site)
    assert (submitted["user"], submitted["uid"], submitted["pid"]) == (str(ALICE), ALICE, 1)
    assert (submitted["path"], submitted["status"], submitted["jobs"]) == ("/v1/jobs", 201, ["1"])
    assert (updated["method"], updated["changes"], updated["users"]) == ("PATCH", {"priority": 3}, [str(ALICE)])
    assert (refused["status"], refused["policy"]) == (403, "fifo")
    assert refused["error"].startswith("only operators can change the policy")
    assert submitted["time_s"] <= updated["time_s"] <= refused["time_s"]
    assert (site.daemon.options.folder / FILE).stat().st_mode & 0o777 == 0o600


def test_it_is_for_operators_and_can_be_searched(site: Site) -> None:
    assert site.as_user(ALICE).get("/v1/audit").status_code == 403
    site.as_user(ALICE).post("/v1/jobs", json=HELD)
    site.own.post("/v1/jobs", json=[HELD] * 20)
    assert [one["count"] for one in entries(site)] == [1, 20]
    assert [one["uid"] for one in entries(site, f"?user={ALICE}")] == [ALICE]
    assert entries(site, f"?since={entries(site)[-1]['time_s'] + 1}") == []
    assert len(entries(site, "?limit=1")) == 1


def test_tokens_are_named_and_secrets_are_not(site: Site) -> None:
    opera = site.as_user(OPERA)
    secret = opera.post("/v1/tokens", json={"name": "ci", "role": "read"}).json()["token"]
    headers = {"Authorization": f"Bearer {secret}"}
    site.as_user(OPERA).post("/v1/jobs", json=HELD | {"env": {"KEY": "hunter2"}})
    TestClient(site.app, "http://127.0.0.1:1", client=("127.0.0.1", 1), headers=headers).post("/v1/jobs", json=HELD)
    made, _, refused = entries(site)
    assert (made["name"], made["role"], refused["token"], refused["status"]) == ("ci", "read", "ci", 403)
    text = (site.daemon.options.folder / FILE).read_text()
    assert secret not in text
    assert "hunter2" not in text


def test_if_it_cannot_be_written_requests_go_on_and_the_status_says_so(site: Site) -> None:
    (site.daemon.options.folder / FILE).mkdir()
    assert site.own.post("/v1/jobs", json=HELD).status_code == 201
    site.app.state.context.audit.write()
    assert "cannot be written" in site.own.get("/v1/status").json()["audit_problem"]
    (site.daemon.options.folder / FILE).rmdir()
    assert [one["status"] for one in entries(site)] == [201]
    assert site.own.get("/v1/status").json()["audit_problem"] == ""


def test_it_is_cut_into_pieces_and_the_oldest_goes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, most_bytes=100, pieces=2)
    for at in range(20):
        log.note({"time_s": float(at), "user": "anna"})
        log.write()
    assert sorted(one.name for one in tmp_path.iterdir()) == [FILE, f"{FILE}.1", f"{FILE}.2"]
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 500
    found = log.entries()
    assert found[-1]["time_s"] == 19.0
    assert [one["time_s"] for one in found] == sorted(one["time_s"] for one in found)


def test_what_waits_for_too_long_is_lost_and_counted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(audit_log, "MOST_WAITING", 3)
    log = AuditLog(tmp_path / "gone")
    for at in range(5):
        log.note({"time_s": float(at)})
    log.write()
    (tmp_path / "gone").mkdir()
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "gone" / FILE).read_text().splitlines()]
    assert [line.get("lost", line["time_s"]) for line in lines] == [2, 2.0, 3.0, 4.0]
