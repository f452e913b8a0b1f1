"""The web page's doors: links that work once, cookies that only the page can use, no data without signing in."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from api_site import ALICE, BOB, OPERA, Site, fingerprint
from starlette.requests import Request
from starlette.testclient import TestClient

from fairway.api import web_sessions
from fairway.api.auth_middleware import PERSON
from fairway.api.tokens import NoTokenError
from fairway.api.web_page import assets
from fairway.api.web_sessions import FILE, Bearer, TooManyFailuresError, WebSessions

HELD = {"command": ["true"], "hold": True}
HERE = "http://127.0.0.1:3247"


def browser(site: Site, uid: int | None = None, base: str = HERE, **headers: str) -> TestClient:
    """A browser of a user; None: the kernel does not say whose."""
    client = ("127.0.0.1" if uid is None else f"tcp:{uid}", 5)
    return TestClient(site.app, base, client=client, headers=headers, raise_server_exceptions=False)


def link(site: Site, uid: int = ALICE, **terms: Any) -> str:
    """The secret of a link."""
    site.app.state.context.page_port.addresses[:] = [("127.0.0.1", 3247)]
    answer = site.as_user(uid).post("/v1/web", json=terms)
    assert answer.status_code == 201, answer.text
    address, _, secret = answer.json()["url"].partition("#link=")
    assert address == f"{HERE}/" == answer.json()["address"]
    return str(secret)


def signed_in(site: Site, uid: int = ALICE, **terms: Any) -> TestClient:
    """A browser that has signed in, and sends what the page sends."""
    client = browser(site, uid)
    told = client.post("/web/session", json={"link": link(site, uid, **terms)})
    assert told.status_code == 200, told.text
    client.headers["X-Fairway-CSRF"] = told.json()["csrf"]
    return client


def test_a_link_signs_in_once_as_whoever_asked_for_it(site: Site) -> None:
    secret, client = link(site), browser(site, ALICE)
    told = client.post("/web/session", json={"link": secret})
    assert {**told.json(), "csrf": ""} == {"user": str(ALICE), "role": "operate", "operator": False, "csrf": ""}
    assert client.get("/web/session").json() == told.json()
    assert client.get("/v1/status").json()["you"] == str(ALICE)
    again = browser(site, ALICE).post("/web/session", json={"link": secret})
    assert again.status_code == 401
    assert again.json() == {"error": "this link has expired or was used; run `fairway web` for a new one"}
    assert signed_in(site, OPERA).get("/v1/status").json()["operator"]


def test_the_cookie_is_for_its_own_page_only(site: Site) -> None:
    cookie = browser(site).post("/web/session", json={"link": link(site)}).headers["set-cookie"]
    name, *attributes = [one.strip().lower() for one in cookie.split(";")]
    assert name.startswith("fairway_3247=")
    assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)
    assert not any(one.startswith("domain") for one in attributes)


def test_without_signing_in_there_is_no_data(site: Site) -> None:
    client = browser(site)
    for path in ("jobs", "page/jobs", "forecast", "events", "status", "metrics", "openapi.json"):
        assert client.get(f"/v1/{path}").status_code == 401, path
    assert client.get("/web/session").status_code == 401
    assert client.delete("/web/session").status_code == 401
    for cookie in (b"x", b"", b"fairway", "💥".encode(), b"a" * 10_000, b"x; fairway_3247=y"):
        told = client.get("/v1/status", headers={b"Cookie": b"fairway_3247=" + cookie})
        assert told.status_code == 401, cookie
    assert "fairway web" in client.get("/v1/status", headers={"Cookie": "fairway_3247=x"}).json()["error"]


def test_a_cookie_alone_changes_nothing(site: Site) -> None:
    client = signed_in(site)
    before, csrf = fingerprint(site.daemon), client.headers.pop("X-Fairway-CSRF")
    for value in (None, b"", csrf[:-1].encode(), "é".encode()):
        wrong = {} if value is None else {b"X-Fairway-CSRF": value}
        assert client.post("/v1/jobs", json=HELD, headers=wrong).status_code == 403
        assert client.delete("/web/session", headers=wrong).status_code == 403
    assert client.post("/v1/what-if", json={}).status_code == 403
    of_another = {"X-Fairway-CSRF": signed_in(site, BOB).headers["X-Fairway-CSRF"]}
    assert client.post("/v1/jobs", json=HELD, headers=of_another).status_code == 403
    assert fingerprint(site.daemon) == before
    assert client.post("/v1/jobs", json=HELD, headers={"X-Fairway-CSRF": csrf}).status_code == 201


FOREIGN = (
    ("Origin", "http://evil.example"),
    ("Origin", "null"),
    ("Origin", "http://127.0.0.1:9999"),
    ("Origin", "https://127.0.0.1:3247"),
    ("Sec-Fetch-Site", "cross-site"),
    ("Sec-Fetch-Site", "same-site"),
    ("Host", "evil.example"),
    ("Host", "127.0.0.1.evil.example:3247"),
    ("Host", "8.8.8.8:3247"),
    ("Host", ""),
)


def test_requests_that_a_foreign_page_causes_are_refused(site: Site) -> None:
    client, before = signed_in(site), fingerprint(site.daemon)
    assert client.get("/v1/status").status_code == 200
    for headers in [dict([one]) for one in FOREIGN]:
        assert client.get("/v1/status", headers=headers).status_code == 403, headers
        assert client.post("/v1/jobs", json=HELD, headers=headers).status_code == 403, headers
        assert browser(site).post("/web/session", json={"link": link(site)}, headers=headers).status_code == 403
    assert fingerprint(site.daemon) == before


def test_a_foreign_page_gets_nothing_through_a_forwarded_socket_either(site: Site) -> None:
    alice = site.as_user(ALICE)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example:80"}):
        assert alice.post("/v1/jobs", json=HELD, headers=headers).status_code == 403
        assert alice.get("/v1/jobs", headers=headers).status_code == 403
    own = {"Origin": "http://localhost:3247", "Host": "localhost:3247", "Sec-Fetch-Site": "same-origin"}
    assert alice.post("/v1/jobs", json=HELD, headers=own).status_code == 201
    assert alice.get("/web/session", headers=own).json()["user"] == str(ALICE)


def test_a_link_from_elsewhere_may_lead_to_the_page_but_not_to_data(site: Site) -> None:
    opened = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert browser(site).get("/", headers=opened).status_code == 200
    assert signed_in(site).get("/v1/status", headers=opened).status_code == 403


def test_a_proxy_with_a_token_may_have_another_name(site: Site) -> None:
    made = site.as_user(OPERA).post("/v1/tokens", json={"name": "p", "role": "read"}).json()["token"]
    proxied = browser(site, base="http://gpus.example", Authorization=f"Bearer {made}")
    assert proxied.get("/v1/status").status_code == 200


def test_every_name_of_loopback_will_do(site: Site) -> None:
    for host, port in (("localhost:9000", 9000), ("127.0.0.9:1", 1), ("[::1]:3247", 3247), ("LOCALHOST", 80)):
        client = browser(site, base=f"http://{host}")
        told = client.post("/web/session", json={"link": link(site)}, headers={"Origin": f"http://{host}"})
        cookie = told.headers["set-cookie"].partition(";")[0]
        assert cookie.startswith(f"fairway_{port}=")
        assert client.get("/v1/status", headers={"Cookie": cookie}).status_code == 200


def test_who_looks_only_changes_nothing(site: Site) -> None:
    client, before = signed_in(site, OPERA, read_only=True), fingerprint(site.daemon)
    assert client.get("/web/session").json()["role"] == "read"
    assert not client.get("/v1/status").json()["operator"]
    answer = client.post("/v1/jobs", json=HELD)
    assert (answer.status_code, answer.json()) == (403, {"error": "you have signed in to look only"})
    assert client.put("/v1/policy", json={"policy": "fifo"}).status_code == 403
    assert client.post("/v1/what-if", json={}).status_code == 200
    assert fingerprint(site.daemon) == before


def test_the_rules_of_the_api_hold_and_the_log_names_the_session(site: Site) -> None:
    job = site.as_user(BOB).post("/v1/jobs", json=HELD).json()["jobs"][0]["id"]
    alice = signed_in(site, ALICE)
    assert alice.post(f"/v1/jobs/{job}/cancel").status_code == 403
    assert signed_in(site, BOB).post(f"/v1/jobs/{job}/cancel").status_code == 200
    entries = site.as_user(OPERA).get("/v1/audit").json()["entries"]
    cancel = entries[-1]
    assert (cancel["user"], cancel["path"], cancel["status"]) == (str(BOB), f"/v1/jobs/{job}/cancel", 200)
    sign_in = next(one for one in entries if one.get("session") == cancel["session"] and one["path"] == "/web/session")
    assert (sign_in["uid"], sign_in["role"]) == (BOB, "operate")


def test_a_session_and_a_link_are_for_one_user_of_the_machine(site: Site) -> None:
    stolen = {"Cookie": f"fairway_3247={signed_in(site, ALICE).cookies['fairway_3247']}"}
    for uid, status in ((BOB, 401), (0, 401), (None, 401), (ALICE, 200)):
        assert browser(site, uid).get("/v1/status", headers=stolen).status_code == status
    secret = link(site, ALICE)
    other = browser(site, BOB).post("/web/session", json={"link": secret})
    assert (other.status_code, "another user" in other.json()["error"]) == (401, True)
    assert browser(site, ALICE).post("/web/session", json={"link": secret}).status_code == 401
    # Root has no browser of its own.
    assert browser(site, BOB).post("/web/session", json={"link": link(site, 0)}).json()["user"] == "root"


def test_a_session_has_a_secret_of_its_own_whatever_cookie_came_along(site: Site) -> None:
    client = browser(site, ALICE)
    planted = {"Cookie": "fairway_3247=planted"}
    told = client.post("/web/session", json={"link": link(site)}, headers=planted)
    assert "planted" not in told.headers["set-cookie"]
    assert browser(site, ALICE).get("/v1/status", headers=planted).status_code == 401
    first = told.headers["set-cookie"].partition(";")[0]
    client.post("/web/session", json={"link": link(site)}, headers={"Cookie": first})
    assert browser(site, ALICE).get("/v1/status", headers={"Cookie": first}).status_code == 401


def test_signing_out_ends_the_session(site: Site) -> None:
    client = signed_in(site)
    cookie = {"Cookie": f"fairway_3247={client.cookies['fairway_3247']}"}
    answer = client.delete("/web/session")
    assert answer.status_code == 200
    assert 'fairway_3247="";' in answer.headers["set-cookie"]
    assert browser(site, ALICE).get("/v1/status", headers=cookie).status_code == 401


def test_a_token_signs_in_and_its_end_is_the_end_of_the_session(site: Site) -> None:
    opera = site.as_user(OPERA)
    secret = opera.post("/v1/tokens", json={"name": "wall", "role": "read"}).json()["token"]
    client = browser(site)
    assert client.post("/web/session", json={"token": secret}).json()["role"] == "read"
    assert client.get("/v1/status").status_code == 200
    by_token = browser(site, Authorization=f"Bearer {secret}")
    assert by_token.post("/v1/web", json={}).status_code == 403
    opera.post("/v1/tokens/wall/rotate")
    assert client.get("/v1/status").status_code == 401
    assert browser(site).post("/web/session", json={"token": secret}).status_code == 401


def test_a_link_ends_with_the_token_that_asked_for_it(site: Site) -> None:
    secret = site.as_user(OPERA).post("/v1/tokens", json={"name": "t", "role": "operate"}).json()["token"]
    link(site)
    url = browser(site, Authorization=f"Bearer {secret}").post("/v1/web", json={}).json()["url"]
    site.as_user(OPERA).delete("/v1/tokens/t")
    assert browser(site, OPERA).post("/web/session", json={"link": url.partition("=")[2]}).status_code == 401


def test_a_page_makes_no_links(site: Site) -> None:
    assert signed_in(site, OPERA).post("/v1/web", json={}).status_code == 403


def test_only_operators_have_a_port_opened(site: Site) -> None:
    answer = site.as_user(ALICE).post("/v1/web", json={})
    assert (answer.status_code, "operator" in answer.json()["error"]) == (403, True)
    assert site.as_user(OPERA).post("/v1/web", json={"address": "0.0.0.0:80"}).status_code == 422
    assert site.as_user(OPERA).post("/v1/web", json={"address": "here"}).status_code == 422


def test_a_malformed_sign_in_is_refused(site: Site) -> None:
    client = browser(site)
    for body in ({}, {"link": "a", "token": "b"}, {"link": ""}, {"link": 1}, {"link": "a" * 300}, [], {"x": 1}):
        assert client.post("/web/session", json=body).status_code == 422, body
    # A foreign page could send such a body without asking.
    plain = client.post("/web/session", content=b'{"link": "a"}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 422


def test_who_fails_too_often_waits_and_others_do_not(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sessions, "MOST_FAILURES", 3)
    answers = [browser(site, BOB).post("/web/session", json={"link": "guess"}).status_code for _ in range(5)]
    assert answers == [401, 401, 401, 429, 429]
    assert browser(site, BOB).post("/web/session", json={"link": link(site, BOB)}).status_code == 429
    assert browser(site, ALICE).post("/web/session", json={"link": link(site)}).status_code == 200
    failed = [one for one in site.as_user(OPERA).get("/v1/audit").json()["entries"] if one["path"] == "/web/session"]
    assert [one["status"] for one in failed] == [401, 401, 401, 200]
    assert not any("guess" in json.dumps(one) for one in failed)


def test_every_answer_says_what_browsers_may_do_with_it(site: Site) -> None:
    client = signed_in(site)
    for path in ("/", "/web/index.html", "/web/nothing.html", "/v1/status", "/v1/nothing", "/v1/jobs?limit=x"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert client.get("/v1/status").headers["cache-control"] == "no-store"


def test_files_of_the_page_are_packed_and_known_again(site: Site) -> None:
    client = browser(site)
    index = client.get("/")
    assert index.headers["content-type"].startswith("text/html")
    assert index.headers["content-encoding"] == "gzip"
    assert client.get("/", headers={"If-None-Match": index.headers["etag"]}).status_code == 304
    assert client.get("/", headers={"Accept-Encoding": "identity"}).content == assets()["index.html"].content
    for name in ("..%2fstore.js", "%2e%2e", "nothing.js", "__init__.py"):
        assert client.get(f"/web/{name}").status_code == 404
    assert client.post("/", json={}).status_code == 405
    assert all(gzip.decompress(one.packed) == one.content for one in assets().values())


def test_links_and_sessions_end(tmp_path: Path) -> None:
    now_s = [1000.0]
    sessions = WebSessions(tmp_path, lambda: now_s[0])
    secret = sessions.link(Bearer(ALICE, "operate"))
    now_s[0] += web_sessions.LINK_S
    with pytest.raises(NoTokenError, match="has expired"):
        sessions.use_link(secret, ALICE)
    session, cookie = sessions.begin(Bearer(ALICE, "operate"), ALICE)
    for _ in range(15):
        now_s[0] += web_sessions.IDLE_S - 1
        known = sessions.known(cookie, ALICE)
    assert known is None, "a session that is used ends after a week"
    session, cookie = sessions.begin(Bearer(ALICE, "operate"), ALICE)
    now_s[0] += web_sessions.IDLE_S - 1
    assert sessions.known(cookie, ALICE) is session
    now_s[0] += web_sessions.IDLE_S
    assert sessions.known(cookie, ALICE) is None


def test_sessions_go_on_after_a_restart_and_no_secret_is_kept(tmp_path: Path) -> None:
    sessions = WebSessions(tmp_path)
    session, cookie = sessions.begin(Bearer(ALICE, "read"), ALICE)
    path = tmp_path / FILE
    assert cookie not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    again = WebSessions(tmp_path).known(cookie, ALICE)
    assert again is not None
    assert dataclasses.replace(again, used_s=0.0) == dataclasses.replace(session, used_s=0.0)
    assert WebSessions(tmp_path).known(next(iter(json.loads(path.read_text()))), ALICE) is None
    for damaged in ("{", "[]", '{"a": 1}', '{"a": {"name": "x"}}', "null", "\x00"):
        path.write_text(damaged)
        assert WebSessions(tmp_path).known(cookie, ALICE) is None


def test_tables_that_are_full_make_room_at_the_expense_of_whoever_has_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("MOST_LINKS_EACH", 2), ("MOST_LINKS", 3), ("MOST_SESSIONS_EACH", 2), ("MOST_SESSIONS", 3)):
        monkeypatch.setattr(web_sessions, name, most)
    sessions = WebSessions(tmp_path)
    bob, alice = Bearer(BOB, "operate"), Bearer(ALICE, "operate")
    first, *cookies = [sessions.begin(alice, ALICE)[1] for _ in range(3)]
    assert sessions.known(first, ALICE) is None
    assert all(sessions.known(one, ALICE) for one in cookies)
    of_bob = [sessions.begin(bob, BOB)[1] for _ in range(2)]
    assert [sessions.known(one, ALICE) is not None for one in cookies] == [False, True]
    assert all(sessions.known(one, BOB) for one in of_bob)
    links = [sessions.link(alice) for _ in range(3)]
    with pytest.raises(NoTokenError):
        sessions.use_link(links[0], ALICE)
    assert sessions.use_link(links[1], ALICE) == alice


def test_failures_are_forgotten_after_a_while(tmp_path: Path) -> None:
    now_s = [0.0]
    sessions = WebSessions(tmp_path, lambda: now_s[0])
    for _ in range(web_sessions.MOST_FAILURES):
        sessions.check_failures(BOB)
        sessions.note_failure(BOB)
    with pytest.raises(TooManyFailuresError):
        sessions.check_failures(BOB)
    sessions.check_failures(ALICE)
    now_s[0] = web_sessions.FAILURES_S
    sessions.check_failures(BOB)


def test_a_stream_is_told_when_its_session_has_ended(site: Site) -> None:
    client = signed_in(site)
    session = site.app.state.context.access.session
    cookie = f"fairway_3247={client.cookies['fairway_3247']}".encode()
    scope = {"client": (f"tcp:{ALICE}", 5), "headers": [(b"host", b"127.0.0.1:3247"), (b"cookie", cookie)]}
    assert session(scope) is not None
    client.delete("/web/session")
    assert session(scope) is None


def test_an_endless_answer_ends_with_the_session(site: Site) -> None:
    client, context = signed_in(site), site.app.state.context
    cookie = f"fairway_3247={client.cookies['fairway_3247']}".encode()
    scope = {
        "type": "http",
        "client": (f"tcp:{ALICE}", 5),
        "headers": [(b"host", b"127.0.0.1:3247"), (b"cookie", cookie)],
    }
    session = context.access.session(scope)
    request = Request(scope | {PERSON: context.access.signed_in(session)})
    assert context.signed_in(request)
    assert client.delete("/web/session").status_code == 200
    assert not context.signed_in(request)
