"""Tokens: each has a role, an end and a name, and is revoked alone. Only its digest is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from api_site import ALICE, OPERA, Site
from starlette.testclient import TestClient

from fairway.api.tokens import FILE, NoTokenError, Tokens
from fairway.core.errors import InputError

HELD = {"command": ["true"], "hold": True}


def over_tcp(site: Site, secret: str) -> TestClient:
    """A connection that carries a token."""
    headers = {"Authorization": f"Bearer {secret}"}
    about = {"client": ("127.0.0.1", 1), "headers": headers, "raise_server_exceptions": False}
    return TestClient(site.app, "http://127.0.0.1:1", **about)


def made(site: Site, **terms: object) -> TestClient:
    """A connection with a new token of an operator."""
    answer = site.as_user(OPERA).post("/v1/tokens", json={"name": "ci", "role": "read"} | terms)
    assert answer.status_code == 201, answer.text
    return over_tcp(site, answer.json()["token"])


def test_a_token_that_may_read_changes_nothing(site: Site) -> None:
    client = made(site)
    assert client.get("/v1/status").json()["you"] == str(OPERA)
    assert not client.get("/v1/status").json()["operator"]
    assert client.post("/v1/what-if", json={}).status_code == 200
    assert "no job has run" in client.post("/v1/history/replay", json={"policies": ["fifo"]}).json()["error"]
    assert client.get("/metrics").status_code == 200
    for answer in (client.post("/v1/jobs", json=HELD), client.put("/v1/policy", json={"policy": "fifo"})):
        assert answer.status_code == 403
        assert answer.json() == {"error": "the token ci may only look"}
    assert client.get("/v1/tokens").status_code == 403
    assert not site.own.get("/v1/jobs").json()["jobs"]


def test_a_token_that_may_submit_controls_the_jobs_of_its_user_only(site: Site) -> None:
    client = made(site, role="submit")
    assert client.post("/v1/jobs", json=HELD).status_code == 201
    assert client.post("/v1/jobs/1/cancel").status_code == 200
    site.as_user(ALICE).post("/v1/jobs", json=HELD)
    assert client.post("/v1/jobs/2/cancel").status_code == 403
    assert client.post("/v1/jobs", json=HELD | {"user": "somebody"}).status_code == 403
    assert client.post("/v1/reload").status_code == 403


def test_a_token_that_may_operate_does_what_its_user_may(site: Site) -> None:
    client = made(site, role="operate")
    site.as_user(ALICE).post("/v1/jobs", json=HELD)
    assert client.post("/v1/jobs/1/cancel").status_code == 200
    assert client.post("/v1/tokens", json={"name": "more", "role": "read"}).status_code == 201


def test_only_operators_make_and_see_tokens(site: Site) -> None:
    alice = site.as_user(ALICE)
    assert alice.post("/v1/tokens", json={"name": "mine", "role": "read"}).status_code == 403
    assert alice.get("/v1/tokens").status_code == 403
    made(site)
    assert alice.delete("/v1/tokens/ci").status_code == 403
    assert alice.post("/v1/tokens/ci/rotate").status_code == 403
    opera = site.as_user(OPERA)
    assert opera.post("/v1/tokens", json={"name": "r", "role": "read", "user": "root"}).status_code == 403
    assert opera.post("/v1/tokens", json={"name": "n", "role": "read", "user": "nobody there"}).status_code == 422
    assert opera.post("/v1/tokens", json={"name": "ci", "role": "read"}).status_code == 409
    assert opera.post("/v1/tokens", json={"name": "token", "role": "read"}).status_code == 409


def test_operators_get_no_tokens_of_root_or_of_the_schedulers_user(site: Site) -> None:
    for uid, name in ((0, "of-root"), (site.app.state.context.access.own_uid, "of-its-user")):
        answer = site.as_user(uid).post("/v1/tokens", json={"name": name, "role": "operate"})
        assert answer.status_code == 201
        refused = site.as_user(OPERA).post(f"/v1/tokens/{name}/rotate")
        assert refused.status_code == 403
        assert "token" not in refused.json()
        assert over_tcp(site, answer.json()["token"]).get("/v1/status").status_code == 200
        assert site.as_user(OPERA).delete(f"/v1/tokens/{name}").status_code == 200


def test_a_token_is_revoked_alone(site: Site) -> None:
    first, second = made(site), made(site, name="other")
    assert [one["name"] for one in site.as_user(OPERA).get("/v1/tokens").json()["tokens"]] == ["ci", "other"]
    assert site.as_user(OPERA).delete("/v1/tokens/ci").status_code == 200
    assert first.get("/v1/status").status_code == 401
    assert second.get("/v1/status").status_code == 200
    assert site.as_user(OPERA).delete("/v1/tokens/ci").status_code == 404


def test_a_rotated_token_has_a_new_secret_and_as_much_time_again(tmp_path: Path) -> None:
    now_s = [100.0]
    tokens = Tokens(tmp_path, lambda: now_s[0])
    _, secret = tokens.create("ci", "submit", ALICE, by="anna", lasts_s=50.0)
    now_s[0] = 140.0
    token, new = tokens.rotate("ci", by="ben")
    assert (token.expires_s, token.role, token.made_by) == (190.0, "submit", "ben")
    with pytest.raises(NoTokenError, match="knows no such token"):
        tokens.bearer(secret)
    assert tokens.bearer(new).uid == ALICE
    now_s[0] = 190.0
    with pytest.raises(NoTokenError, match="the token ci has expired"):
        tokens.bearer(new)


def test_tokens_are_kept_over_a_restart_and_no_secret_is(tmp_path: Path) -> None:
    _, secret = Tokens(tmp_path).create("ci", "read", ALICE, by="anna")
    path = tmp_path / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    assert Tokens(tmp_path).bearer(secret).name == "ci"
    stolen = json.loads(path.read_text())[0]["digest"]
    with pytest.raises(NoTokenError):
        Tokens(tmp_path).bearer(stolen)
    path.write_text("{")
    with pytest.raises(InputError, match=FILE):
        Tokens(tmp_path)


def test_the_single_token_still_works(new_site: Callable[..., Site]) -> None:
    site = new_site(token=lambda: "secret")
    assert over_tcp(site, "secret").get("/v1/status").json()["operator"]
    answer = over_tcp(site, "wrong").get("/v1/status")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
