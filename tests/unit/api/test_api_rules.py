"""Who may do what, space on the disk, the event stream and the metrics."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_site import ALICE, OPERA, Site, fingerprint

from fairway.api.app import make_app
from fairway.api.disk_space import DiskNearlyFullError, DiskSpace
from fairway.api.people import Access, NotAllowedError, NoTokenError, Person
from fairway.models.names import ProfileKey
from fairway.runtime.guard.incident import Incident

HELD = {"command": ["true"], "hold": True}


def on_socket(uid: int, **headers: str) -> dict[str, Any]:
    pairs = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "client": (f"uid:{uid}", 9), "headers": pairs}


def over_tcp(**headers: str) -> dict[str, Any]:
    return on_socket(0, **headers) | {"client": ("127.0.0.1", 5)}


def test_root_the_own_user_and_operators_are_operators() -> None:
    access = Access(own_uid=4321, operators=lambda: {str(OPERA)})
    assert [access.person(on_socket(uid)).operator for uid in (0, 4321, OPERA, ALICE)] == [True, True, True, False]
    assert access.person(on_socket(0)).name == "root"


def test_over_tcp_only_the_token_counts() -> None:
    access = Access(own_uid=4321, token=lambda: "secret")
    assert access.person(over_tcp(authorization="Bearer secret")).uid == 4321
    for header in ("", "secret", "bearer secret", "Bearer ", "Bearer secre", "Bearer secret2", "Basic secret"):
        with pytest.raises(NoTokenError):
            access.person(over_tcp(authorization=header))
    with pytest.raises(NoTokenError):
        access.person({"type": "http", "client": None, "headers": []})
    with pytest.raises(NoTokenError):
        Access(own_uid=4321).person(over_tcp(authorization="Bearer None"))


def test_a_scheduler_of_root_runs_jobs_as_whoever_submits_them() -> None:
    access = Access(own_uid=0)
    somebody = next(one for one in pwd.getpwall() if one.pw_uid != 0)
    user = Person(somebody.pw_uid, somebody.pw_name, operator=False)
    root = Person(0, "root", operator=True)
    operator = Person(somebody.pw_uid, somebody.pw_name, operator=True)
    assert access.owner(user, "") == (user.name, user.name)
    assert access.owner(root, user.name) == (user.name, user.name)
    assert access.owner(root, "label") == ("label", "root")
    assert access.owner(operator, "label") == ("label", operator.name)
    for person, asked in ((operator, "root"), (user, "root"), (Person(ALICE, str(ALICE), False), "")):
        with pytest.raises(NotAllowedError):
            access.owner(person, asked)


def test_without_root_all_jobs_run_as_the_scheduler() -> None:
    access = Access(own_uid=4321)
    assert access.owner(Person(4321, "me", operator=True), "") == ("me", "")
    assert access.owner(Person(4321, "me", operator=True), "root") == ("root", "")
    with pytest.raises(NotAllowedError):
        access.owner(Person(ALICE, "alice", operator=False), "")


def test_submissions_are_refused_before_the_disk_is_full(site: Site, tmp_path: Path) -> None:
    disk = DiskSpace(tmp_path, kept_free_bytes=2**62)
    with pytest.raises(DiskNearlyFullError, match="no jobs are taken below"):
        disk.refuse_if_full()
    site.app.state.context.disk.kept_free_bytes = 2**62
    before = fingerprint(site.daemon)
    answer = site.own.post("/v1/jobs", json=HELD)
    assert answer.status_code == 507
    assert "MiB left" in answer.json()["error"]
    assert fingerprint(site.daemon) == before
    status = site.own.get("/v1/status")
    assert status.status_code == 200
    assert not status.json()["accepts"]
    site.app.state.context.disk.kept_free_bytes = 0
    assert site.as_user(0).post("/v1/jobs", json=HELD).status_code == 201


def test_the_ballast_goes_when_the_journal_finds_no_room_and_comes_back(tmp_path: Path) -> None:
    disk = DiskSpace(tmp_path, kept_free_bytes=0, ballast_bytes=1_000_000)
    assert disk.take_on_ballast()
    assert disk.ballast.stat().st_blocks * 512 >= 1_000_000
    disk.drop_ballast()
    disk.drop_ballast()
    assert not disk.ballast.exists()
    disk.refuse_if_full()
    assert disk.ballast.exists()
    disk.drop_ballast()
    assert not DiskSpace(tmp_path, kept_free_bytes=2**62, ballast_bytes=1).take_on_ballast()
    assert not disk.ballast.exists()


def test_the_scheduler_drops_the_ballast_by_itself(site: Site) -> None:
    disk = site.app.state.context.disk
    disk.take_on_ballast()
    for make_space in site.daemon.scheduler.writer.on_full:
        make_space()
    assert not disk.ballast.exists()


def collected(site: Site, act: Callable[[], None], count: int, last: str | None = None) -> list[dict[str, Any]]:
    """The first events of a stream that begins before something is done."""
    stream = site.app.state.context.stream

    async def reading() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        coming = stream.follow(last, quiet_s=5.0)
        assert (await anext(coming)).startswith(b":")
        await asyncio.to_thread(act)
        while len(found) < count:
            text = await asyncio.wait_for(anext(coming), 30)
            found += [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: ")]
        await coming.aclose()
        return found

    return asyncio.run(reading())


def test_what_happens_is_told_as_it_happens(site: Site) -> None:
    client = site.as_user(0)

    def act() -> None:
        client.post("/v1/jobs", json=HELD | {"name": "é"})
        client.patch("/v1/jobs/1", json={"priority": 3})
        client.post("/v1/jobs/1/cancel")

    told = collected(site, act, 3)
    assert [one["event"] for one in told] == ["JobSubmitted", "JobUpdated", "JobCancelled"]
    assert {one["job"] for one in told} == {"1"}
    assert (told[0]["name"], told[1]["priority"], told[2]["state"]) == ("é", 3, "CANCELLED")


def test_who_was_cut_off_gets_what_was_missed(site: Site) -> None:
    client = site.as_user(0)
    first = collected(site, lambda: client.post("/v1/jobs", json=HELD), 1)[0]
    for _ in range(3):
        client.post("/v1/jobs", json=HELD)
    missed = collected(site, lambda: None, 3, last=first["id"])
    assert [one["job"] for one in missed] == ["2", "3", "4"]
    for strange in ("", "nonsense", "deadbeef-1", first["id"].split("-")[0] + "-999"):
        assert collected(site, lambda: None, 1, last=strange)[0]["event"] == "Gap"


def test_a_stream_says_where_it_has_a_gap(site: Site) -> None:
    stream, client = site.app.state.context.stream, site.as_user(0)
    first = collected(site, lambda: client.post("/v1/jobs", json=HELD), 1)[0]
    client.post("/v1/jobs", json=[HELD] * 10)
    # Whoever submits is answered before the stream is told; the next command comes after that.
    site.daemon.scheduler.ask(lambda now_s: ([], None))
    stream._most = 2
    told = collected(site, lambda: None, 3, last=first["id"])
    assert [one["event"] for one in told] == ["Gap", "JobSubmitted", "JobSubmitted"]


def test_streams_end_when_the_server_does(site: Site) -> None:
    stream = site.app.state.context.stream

    async def reading() -> int:
        coming = stream.follow(quiet_s=60.0)
        await anext(coming)
        asyncio.get_running_loop().call_later(0.1, stream.close)
        return len([one async for one in coming])

    assert asyncio.run(asyncio.wait_for(reading(), 30)) == 0


def test_the_figures_are_those_of_the_scheduler(site: Site) -> None:
    client = site.as_user(0)
    client.post("/v1/jobs", json=[HELD] * 3)
    client.post("/v1/jobs/1/cancel")
    answer = client.get("/v1/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert lines['fairway_jobs{state="PENDING"}'] == "2.0"
    assert lines['fairway_jobs{state="CANCELLED"}'] == "1.0"
    assert lines['fairway_gpus{use="idle"}'] == "4.0"
    assert lines['fairway_gpus{use="held"}'] == "0.0"
    assert lines['fairway_user_gpu_seconds_total{user="root"}'] == "0.0"
    assert float(lines["fairway_decision_seconds_count"]) >= 1
    assert float(lines["fairway_journal_bytes"]) > 0
    assert lines["fairway_preemptions_total"] == "0.0"
    at_the_root = client.get("/metrics")
    assert at_the_root.headers["content-type"] == answer.headers["content-type"]
    assert 'fairway_jobs{state="PENDING"} 2.0' in at_the_root.text.splitlines()


def test_what_was_measured_is_told_and_can_be_a_profile(site: Site) -> None:
    profile, kind = site.daemon.scheduler.measured.profile, ProfileKey("ant", 32, 1)
    empty = site.own.get("/v1/profile").json()
    assert empty == {"speeds": [], "pairs": [], "throughputs": {}}
    profile.note_speed("h200", kind, 8.0, 100.0)
    profile.note_pair("h200", kind, kind, (0.75, 0.75), 100.0, "mps")
    told = site.own.get("/v1/profile").json()
    assert told["speeds"][0] | {"measured_s": 0} == {
        "gpu_type": "h200",
        "model": "ant",
        "batch_size": 32,
        "gpus": 1,
        "steps_per_s": 8.0,
        "times": 1,
        "measured_s": 0,
    }
    assert (told["pairs"][0]["kept"], told["pairs"][0]["sharing"]) == ([0.75, 0.75], "mps")
    name = "('ant (batch size 32)', 1)"
    assert told["throughputs"] == {"h200": {name: {"null": 8.0, name: [6.0, 6.0]}}}
    refused = site.own.get("/v1/profile", params={"sharing": "lanes"})
    assert refused.status_code == 422
    assert "no pair was measured by 'lanes'; known: mps" in refused.text


def test_the_document_describes_every_route(site: Site) -> None:
    document = site.own.get("/v1/openapi.json").json()
    expected = {"/jobs", "/jobs/{name}", "/jobs/{name}/logs", "/jobs/{name}/why", "/what-if", "/nodes", "/share"}
    expected |= {
        "/eta",
        "/history",
        "/history/export",
        "/history/replay",
        "/history/trace",
        "/gc",
        "/policy",
        "/profile",
        "/reload",
        "/snapshot",
        "/status",
        "/events",
        "/metrics",
    }
    expected |= {"/tokens", "/tokens/{name}", "/tokens/{name}/rotate", "/audit"}
    expected |= {"/web", "/page/jobs", "/forecast"}
    expected |= {"/nodes/{name}/drain", "/nodes/{name}/undrain"}
    expected |= {"/timeline", "/jobs/{name}/course", "/jobs/{name}/events", "/submission"}
    expected |= {f"/jobs/{{name}}/{verb}" for verb in ("cancel", "suspend", "resume", "requeue", "hold", "release")}
    assert set(document["paths"]) == {"/metrics", *(f"/v1{path}" for path in expected)}
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            assert one["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/Error"), path
            assert one.get("summary"), (path, method)


def test_an_error_of_ours_is_one_line_too(new_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    site = new_site()

    def broken(daemon: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("fairway.api.views.nodes", broken)
    answer = site.own.get("/v1/nodes")
    assert answer.status_code == 500
    assert answer.json() == {"error": "an error inside the scheduler: ZeroDivisionError: oh"}


def test_a_stopped_scheduler_says_so(site: Site) -> None:
    site.daemon.scheduler.close()
    site.daemon._thread.join(30)  # type: ignore[union-attr]
    answer = site.as_user(0).post("/v1/jobs", json=HELD)
    assert answer.status_code == 503
    assert "stopped" in answer.json()["error"]


def test_an_application_can_be_made_without_rules(site: Site) -> None:
    assert make_app(site.daemon).state.context.access.own_uid == os.geteuid()


def test_an_instant_is_a_file_that_can_be_replayed_and_tells_no_secrets(site: Site) -> None:
    secret = {"command": ["true", "--password=hunter2"], "env": {"TOKEN": "hunter2"}}
    assert site.own.post("/v1/jobs", json=secret).status_code == 201
    answer = site.as_user(ALICE).get("/v1/snapshot")
    assert answer.status_code == 200
    assert "hunter2" not in answer.text
    incident = Incident.of_text(answer.text)
    assert [one.id for one in incident.decided] == ["1"]
    assert incident._replace(policy="fifo").decide()[0].gpus == 1
