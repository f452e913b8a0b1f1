"""Jobs over HTTP: what is taken, what is refused, with which status, and that a refusal changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from api_site import ALICE, BOB, OPERA, Site, fingerprint

from fairway.runtime.jobs.request import JobRequest
from fairway.testing.waiting import wait_for

HELD = {"command": ["true"], "hold": True}


def submitted(site: Site, uid: int = ALICE, **fields: Any) -> dict[str, Any]:
    answer = site.as_user(uid).post("/v1/jobs", json=HELD | fields)
    assert answer.status_code == 201, answer.text
    row: dict[str, Any] = answer.json()["jobs"][0]
    return row


def refused(site: Site, status: int, method: str, path: str, uid: int = ALICE, **about: Any) -> str:
    """A request that must be refused, and leave everything as it was; the line that says why."""
    before = fingerprint(site.daemon)
    answer = site.as_user(uid).request(method, path, **about)
    assert answer.status_code == status, answer.text
    assert fingerprint(site.daemon) == before
    why: str = answer.json()["error"]
    assert why
    assert "\n" not in why
    return why


def test_a_job_is_taken_with_what_was_asked_for(site: Site) -> None:
    row = submitted(site, name="größer 日本 🚀", gpus=2, priority=7, env={"A": "ü"}, expected_s=60, gpu_types=["cpu"])
    assert (row["user"], row["name"], row["gpus"], row["state"]) == (str(ALICE), "größer 日本 🚀", 2, "PENDING")
    told = site.as_user(ALICE).get(f"/v1/jobs/{row['id']}").json()
    assert told["request"]["env"] == {"A": "ü"}
    assert told["request"]["expected_s"] == 60
    assert told["held"]
    assert "held by its owner" in told["reason"]


def test_lists_and_arrays_are_taken_whole(site: Site) -> None:
    client = site.as_user(ALICE)
    rows = client.post("/v1/jobs", json=[HELD | {"name": str(k)} for k in range(20)]).json()["jobs"]
    assert [row["name"] for row in rows] == [str(k) for k in range(20)]
    tasks = client.post("/v1/jobs", json=HELD | {"array": [3, 5, 9]}).json()["jobs"]
    base = tasks[0]["id"].split("_")[0]
    assert [task["id"] for task in tasks] == [f"{base}_3", f"{base}_5", f"{base}_9"]
    assert [one["id"] for one in client.get(f"/v1/jobs/{base}").json()["tasks"]] == [task["id"] for task in tasks]
    ended = client.post(f"/v1/jobs/{base}/cancel").json()["jobs"]
    assert {one["state"] for one in ended} == {"CANCELLED"}


def test_of_a_list_all_jobs_are_taken_or_none(site: Site) -> None:
    why = refused(site, 422, "POST", "/v1/jobs", json=[HELD, HELD | {"gpus": 99}])
    assert "no GPUs here can ever run" in why
    assert "array" in refused(site, 422, "POST", "/v1/jobs", json=[HELD, HELD | {"array": [1]}])
    assert "twice" in refused(site, 422, "POST", "/v1/jobs", json=HELD | {"array": [1, 1]})
    refused(site, 422, "POST", "/v1/jobs", json=[])


BAD_FIELDS: list[dict[str, Any]] = [
    {"command": []},
    {"command": [""]},
    {"command": "python train.py"},
    {"command": ["a\0b"]},
    {"command": ["x"] * 5000},
    {"gpus": 0},
    {"gpus": -1},
    {"gpus": True},
    {"gpus": "1"},
    {"gpus": 1.5},
    {"gpus": 10**30},
    {"gpus_min": 3, "gpus_max": 2},
    {"gpus_min": 1, "gpus_max": 4, "preempt": "suspend"},
    {"memory_bytes": 2**80},
    {"batch_size": 2**70},
    {"priority": 10**12},
    {"weight": 0},
    {"weight": -1.0},
    {"limit_s": 0},
    {"limit_s": 1e300},
    {"limit_s": "1h"},
    {"preempt": "perhaps"},
    {"processes": "many"},
    {"retries": 1001},
    {"name": "../../etc/passwd"},
    {"name": "a\nb"},
    {"name": "x" * 201},
    {"name": None},
    {"queue": "a/b"},
    {"cwd": "relative"},
    {"cwd": "/a\0b"},
    {"env": {"A-B": "1"}},
    {"env": {"A": 1}},
    {"env": {"A": "\0"}},
    {"env": [["A", "1"]]},
    {"depends": [{"kind": "after", "job": "1"}]},
    {"depends": [{"kind": "afterok", "job": "999"}]},
    {"depends": [{"kind": "afterok", "job": "1", "more": 1}]},
    {"client_key": ""},
    {"client_key": "k" * 300},
    {"array": []},
    {"array": [-1]},
    {"array": "0-9"},
    {"account": "root"},
    {"array_task": 3},
    {"nonsense": 1},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda fields: json.dumps(fields)[:50])
def test_what_makes_no_sense_is_refused_with_one_line(site: Site, fields: dict[str, Any]) -> None:
    refused(site, 422, "POST", "/v1/jobs", json=HELD | fields)


def test_everything_that_is_wrong_is_named(site: Site) -> None:
    why = refused(site, 422, "POST", "/v1/jobs", json={"gpus": "x", "nme": "", "retries": -1})
    assert [one.partition(": ")[0] for one in why.split("; ")] == ["command", "gpus", "retries", "nme"]
    why = refused(site, 422, "POST", "/v1/jobs", json=[HELD, HELD | {"gpus": "x"}])
    assert why == "1.gpus: must be a whole number"
    why = refused(site, 422, "POST", "/v1/jobs", json=HELD | {f"field{k}": 1 for k in range(30)})
    assert why.endswith("field7: there is no such field; and 22 more")
    assert len(refused(site, 422, "POST", "/v1/jobs", json=HELD | {"x" * 100_000: 1})) < 200


def test_what_can_never_run_names_what_was_asked_for(site: Site) -> None:
    for asked, says in (
        ({"gpu_types": ["h100"]}, "it asks for 1 GPU of type h100; there are cpu × 4"),
        ({"gpu_types": ["h100", "a100"], "gpus": 2}, "it asks for 2 GPUs of type h100 or a100; there are cpu × 4"),
    ):
        assert says in refused(site, 422, "POST", "/v1/jobs", json=HELD | asked)


def test_all_policies_are_named_to_whoever_asks_for_another(site: Site) -> None:
    why = refused(site, 422, "PUT", "/v1/policy", OPERA, json={"policy": "nonsense"})
    assert set(site.own.get("/v1/policy").json()["known"]) <= set(why.replace(",", "").split())


def test_a_wrapped_command_is_shown_as_it_was_written(site: Site) -> None:
    row = submitted(site, command=["bash", "-c", "wrapper"], shown="train.sbatch 3")
    assert row["command"] == "train.sbatch 3"
    assert site.own.get("/v1/jobs").json()["jobs"][0]["command"] == "train.sbatch 3"
    refused(site, 422, "POST", "/v1/jobs", json=HELD | {"shown": "x" * 5000})


def test_whoever_waits_is_told_what_the_last_decision_said(site: Site) -> None:
    job = submitted(site, hold=False)["id"]
    reason = wait_for(lambda: site.own.get("/v1/jobs").json()["jobs"][0]["reason"], "a reason")
    assert reason == "the policy gave no GPUs and no more precise reason"
    assert site.own.get(f"/v1/jobs/{job}").json()["reason"] == reason


BAD_BODIES = [
    (b"", 422),
    (b"{", 422),
    (b"null", 422),
    (b"[[]]", 422),
    (b'"text"', 422),
    (b"\xff\xfe", 422),
    (b'{"command": ["\\ud800"]}', 422),
    (b'{"command": ["true"], "weight": NaN}', 422),
    (b'{"command": ["true"], "weight": 1e999}', 422),
    (b'{"command": ["true"], "priority": ' + b"9" * 5000 + b"}", 422),
    (b"[" * 50_000, 422),
    (b'{"command": ["true"]' + b" " * 1024 * 1024 + b"}", 413),
]


@pytest.mark.parametrize(("body", "status"), BAD_BODIES, ids=lambda one: repr(one)[:30])
def test_a_body_that_is_not_what_it_should_be_is_refused(site: Site, body: bytes, status: int) -> None:
    before = fingerprint(site.daemon)
    answer = site.own.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert fingerprint(site.daemon) == before


def test_a_body_without_a_length_is_limited_too(site: Site) -> None:
    def pieces() -> Any:
        for _ in range(40):
            yield b" " * 65536

    answer = site.own.post("/v1/jobs", content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "name", ["999", "..", "../../x", "%2e%2e%2fetc%2fpasswd", "1%00", "-1", "1_", "_", "💥", "a" * 150, "1;ls", "0x1"]
)
def test_an_id_is_only_ever_looked_up(site: Site, name: str) -> None:
    submitted(site)
    for method, end in (("GET", ""), ("GET", "/logs"), ("GET", "/why"), ("POST", "/cancel"), ("POST", "/hold")):
        refused(site, 404, method, f"/v1/jobs/{name}{end}")
    refused(site, 404, "PATCH", f"/v1/jobs/{name}", json={"priority": 1})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/jobs", "GET, POST"),
        ("PUT", "/v1/jobs/1", "GET, PATCH"),
        ("GET", "/v1/jobs/1/cancel", "POST"),
        ("POST", "/v1/policy", "GET, PUT"),
        ("POST", "/v1/metrics", "GET"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(site: Site, method: str, path: str, allowed: str) -> None:
    answer = site.own.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert "error" in answer.json()


def test_unknown_paths_and_queries(site: Site) -> None:
    for path in ("/web", "/v1", "/v1/", "/v1/jobs/", "/docs", "/v2/jobs", "//v1/jobs"):
        refused(site, 404, "GET", path)
    for query in ("state=SLEEPING", "limit=0", "limit=x", "since=yesterday", "since=nan", "user=a/b"):
        refused(site, 422, "GET", f"/v1/jobs?{query}")


def test_jobs_can_be_chosen(site: Site) -> None:
    (site.daemon.scheduler.folder / "fairway.toml").write_text("[queues.night]\n[queues.default]\n")
    site.own.post("/v1/reload")
    first = submitted(site, ALICE, queue="night")
    second = submitted(site, BOB)
    third = submitted(site, ALICE)
    site.own.post(f"/v1/jobs/{third['id']}/cancel")

    def ids(query: str) -> list[str]:
        return [row["id"] for row in site.own.get(f"/v1/jobs?{query}").json()["jobs"]]

    assert ids("") == [first["id"], second["id"], third["id"]]
    assert ids(f"user={ALICE}") == [first["id"], third["id"]]
    assert ids("state=PENDING") == [first["id"], second["id"]]
    assert ids("state=PENDING&state=CANCELLED&limit=2") == [second["id"], third["id"]]
    assert ids("queue=night") == [first["id"]]
    assert ids(f"since={second['submitted_s']}") == [second["id"], third["id"]]
    assert [row["id"] for row in site.own.get("/v1/history").json()["jobs"]] == [third["id"]]
    assert site.own.get(f"/v1/history?user={BOB}").json()["jobs"] == []


def test_everybody_sees_everything_and_controls_their_own(site: Site) -> None:
    job = submitted(site, ALICE, env={"LEVEL": "1"})["id"]
    assert site.as_user(BOB).get("/v1/jobs").json()["jobs"][0]["user"] == str(ALICE)
    assert "env" not in site.as_user(BOB).get(f"/v1/jobs/{job}").json()["request"]
    for verb in ("cancel", "suspend", "resume", "requeue", "hold", "release"):
        why = refused(site, 403, "POST", f"/v1/jobs/{job}/{verb}", BOB)
        assert why == f"job {job} is {ALICE}'s; you are {BOB}"
    refused(site, 403, "PATCH", f"/v1/jobs/{job}", BOB, json={"priority": 5})
    for uid in (ALICE, OPERA, 0, 4321):
        assert site.as_user(uid).post(f"/v1/jobs/{job}/hold").status_code == 200
    assert site.as_user(OPERA).get(f"/v1/jobs/{job}").json()["request"]["env"] == {"LEVEL": "1"}


def test_secrets_are_not_shown_to_anybody(site: Site) -> None:
    secrets = dict.fromkeys(
        (
            *(
                "WANDB_API_KEY",
                "HF_TOKEN",
                "MY_SECRET",
                "db_password",
                "AWS_SECRET_ACCESS_KEY",
                "MYSQL_PWD",
                "PGPASSWORD",
            ),
            *("NPM_AUTH", "BASIC_AUTH_2", "SSH_PASSPHRASE", "SENTRY_DSN", "DB_PASS", "GIT_CREDENTIALS"),
        ),
        "s3cret",
    )
    plain = {
        "TOKENIZERS_PARALLELISM": "false",
        "AUTHOR": "ann",
        "COMPASS_DIR": "/c",
        "PWDIR": "/d",
        "URL": "http://h/a@b",
    }
    proxies = {"HTTPS_PROXY": "http://ann:s3cret@proxy:3128", "DB": "postgres://u:s3cret@h/d redis://:s3cret@h"}
    job = submitted(site, ALICE, env={**secrets, **plain, **proxies})["id"]
    for person in (ALICE, OPERA):
        answer = site.as_user(person).get(f"/v1/jobs/{job}")
        assert "s3cret" not in answer.text
        assert answer.json()["request"]["env"] == {
            **dict.fromkeys(secrets, "********"),
            **plain,
            "HTTPS_PROXY": "http://********@proxy:3128",
            "DB": "postgres://********@h/d redis://********@h",
        }


def test_nobody_submits_for_somebody_else_but_operators(site: Site) -> None:
    assert "cannot submit for" in refused(site, 403, "POST", "/v1/jobs", BOB, json=HELD | {"user": str(ALICE)})
    assert submitted(site, BOB, user=str(BOB))["user"] == str(BOB)
    assert submitted(site, OPERA, user=str(ALICE))["user"] == str(ALICE)


def test_strangers_look_but_do_not_submit_where_all_jobs_run_as_one_user(new_site: Callable[..., Site]) -> None:
    site = new_site(open_to_all=False)
    why = refused(site, 403, "POST", "/v1/jobs", BOB, json=HELD)
    assert why == f"this scheduler runs all jobs as 4321; {BOB} may look, but not submit"
    assert site.as_user(BOB).get("/v1/jobs").status_code == 200
    assert submitted(site, 4321)["user"] == "4321"
    assert submitted(site, 4321, user="anybody")["user"] == "anybody"


def test_only_operators_change_the_policy(site: Site) -> None:
    assert "only operators" in refused(site, 403, "PUT", "/v1/policy", BOB, json={"policy": "fifo"})
    refused(site, 422, "PUT", "/v1/policy", OPERA, json={"policy": "best"})
    refused(site, 422, "PUT", "/v1/policy", OPERA, json={"policy": "las", "more": 1})
    refused(site, 403, "PUT", "/v1/policy", OPERA, json={"policy": "las:levels=@/etc/passwd"})
    answer = site.as_user(OPERA).put("/v1/policy", json={"policy": "las:levels=1/2"})
    assert answer.json()["policy"] == "las:levels=1/2"
    assert site.own.get("/v1/policy").json()["name"] == "las"


def test_forecasts_read_no_files_for_strangers(site: Site) -> None:
    body = {"policy": "las:levels=@/etc/passwd"}
    assert "read files" in refused(site, 403, "POST", "/v1/what-if", BOB, json=body)


def test_the_same_key_gives_the_same_job(site: Site) -> None:
    client, key = site.as_user(ALICE), {"Idempotency-Key": "k1"}
    first = client.post("/v1/jobs", json=HELD, headers=key)
    again = client.post("/v1/jobs", json=HELD, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["jobs"][0]["id"] == again.json()["jobs"][0]["id"]
    assert submitted(site, BOB, client_key="k1")["id"] != first.json()["jobs"][0]["id"]
    by_field = client.post("/v1/jobs", json=HELD | {"client_key": "k1"})
    assert by_field.status_code == 200
    many = [client.post("/v1/jobs", json=HELD | {"array": [0, 1]}, headers={"Idempotency-Key": "k2"}) for _ in "ab"]
    assert [row["id"] for row in many[0].json()["jobs"]] == [row["id"] for row in many[1].json()["jobs"]]
    refused(site, 422, "POST", "/v1/jobs", json=[HELD | {"client_key": "k3"}, HELD | {"client_key": "k3"}])


def test_a_key_holds_under_concurrency(site: Site) -> None:
    answers: list[Any] = []
    ready = threading.Barrier(12)

    def send() -> None:
        client = site.as_user(ALICE)
        ready.wait()
        answers.append(client.post("/v1/jobs", json=HELD, headers={"Idempotency-Key": "race"}))

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 12
    assert len({answer.json()["jobs"][0]["id"] for answer in answers}) == 1
    assert [answer.status_code for answer in answers].count(201) == 1
    assert len(site.daemon.scheduler.store) == 1


def test_terms_can_be_changed_while_a_job_has_not_ended(site: Site) -> None:
    job = submitted(site)["id"]
    client = site.as_user(ALICE)
    changes = {"priority": 9, "weight": 2.5, "limit_s": 60, "deadline_s": 3600, "name": "new"}
    assert client.patch(f"/v1/jobs/{job}", json=changes).status_code == 200
    told = client.get(f"/v1/jobs/{job}").json()["request"]
    assert {name: told[name] for name in changes} == changes
    state = site.daemon.scheduler.state.snapshot()
    assert (state.priority[0], state.weight[0]) == (9, 2.5)
    assert client.patch(f"/v1/jobs/{job}", json={"limit_s": None, "deadline_s": None}).status_code == 200
    assert "limit_s" not in client.get(f"/v1/jobs/{job}").json()["request"]
    for body in ({}, {"gpus": 2}, {"priority": None}, {"weight": 0}, {"name": "a/b"}, []):
        refused(site, 422, "PATCH", f"/v1/jobs/{job}", json=body)
    client.post(f"/v1/jobs/{job}/cancel")
    assert "it cannot be changed" in refused(site, 409, "PATCH", f"/v1/jobs/{job}", json={"priority": 1})


def test_what_cannot_be_done_in_a_state_is_a_conflict(site: Site) -> None:
    job = submitted(site)["id"]
    refused(site, 409, "POST", f"/v1/jobs/{job}/requeue")
    client = site.as_user(ALICE)
    assert client.post(f"/v1/jobs/{job}/cancel").json()["jobs"][0]["state"] == "CANCELLED"
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 200
    for verb in ("suspend", "hold", "release", "resume", "requeue"):
        refused(site, 409, "POST", f"/v1/jobs/{job}/{verb}")


def test_of_an_array_the_tasks_that_can_are_changed(site: Site) -> None:
    client = site.as_user(ALICE)
    tasks = [row["id"] for row in client.post("/v1/jobs", json=HELD | {"array": [1, 2]}).json()["jobs"]]
    client.post(f"/v1/jobs/{tasks[0]}/cancel")
    base = tasks[0].split("_")[0]
    rows = client.post(f"/v1/jobs/{base}/release").json()["jobs"]
    assert [row["state"] for row in rows] == ["CANCELLED", "PENDING"]
    assert not client.get(f"/v1/jobs/{tasks[1]}").json()["held"]


def test_a_new_job_is_told_from_an_old_one_also_where_the_configuration_adds_to_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heavier(requests: Sequence[JobRequest]) -> list[JobRequest]:
        return [replace(one, weight=3.0) for one in requests]

    monkeypatch.setattr(site.daemon.settings, "given", heavier)
    client, key = site.as_user(ALICE), {"Idempotency-Key": "k"}
    first = client.post("/v1/jobs", json=HELD, headers=key)
    assert (first.status_code, client.post("/v1/jobs", json=HELD, headers=key).status_code) == (201, 200)
    assert client.get("/v1/jobs/1").json()["request"]["weight"] == 3.0


def test_a_job_may_ask_for_a_share_of_a_gpu(site: Site) -> None:
    row = submitted(site, gpu_share=0.5)
    assert (row["gpus"], row["gpu_share"]) == (1, 0.5)
    for fields, why in (
        ({"gpu_share": 0}, "gpu_share: must be at least 0.001"),
        ({"gpu_share": -0.5}, "gpu_share: must be at least 0.001"),
        ({"gpu_share": 1.5}, "gpu_share: must be at most 1"),
        ({"gpu_share": "0.5"}, "gpu_share: must be a number"),
        ({"gpu_share": 0.5, "gpus": 2}, "gpu_share: 0.5 is a part of one GPU, and the job may have 2"),
        ({"gpus": 0.5}, "gpus: must be a whole number; gpu_share asks for a part of one GPU"),
        ({"gpus": 1.5}, "gpus: must be a whole number"),
    ):
        assert why in refused(site, 422, "POST", "/v1/jobs", json=HELD | fields)
