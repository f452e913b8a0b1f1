"""The commands for operators, against a scheduler that only answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_samples import Shell

from fairway.client import Client

TOKEN = {"name": "ci", "role": "read", "user": "ann", "made_s": 0.0, "made_by": "ann", "expires_s": 1.0}
ENTRIES = [
    {"time_s": 0.0, "user": "ann", "uid": 1, "pid": 7, "method": "POST", "path": "/v1/jobs", "status": 201}
    | {"jobs": ["12"], "users": ["ann"], "count": 1},
    {"time_s": 1.0, "user": "ben", "uid": 2, "token": "ci", "method": "PUT", "path": "/v1/policy", "status": 403}
    | {"policy": "fifo", "error": "only operators"},
    {"time_s": 2.0, "lost": 3},
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """What the scheduler was asked."""
    found: list[tuple[str, str, Any]] = []

    def answer(self: Client, method: str, path: str, body: Any = None, **more: Any) -> Any:
        found.append((method, path, body or more.get("query")))
        return {"tokens": [TOKEN], "entries": ENTRIES, **TOKEN, "token": "s3cret"}

    monkeypatch.setattr(Client, "_json", answer)
    return found


def test_tokens_are_made_listed_renewed_and_revoked(shell: Shell, asked: list[tuple[str, str, Any]]) -> None:
    made = shell("token", "create", "--role", "read", "--expires", "30d", "--name", "ci").out
    assert made.endswith("it is shown only now:\ns3cret\n")
    assert asked.pop() == ("POST", "/tokens", {"name": "ci", "role": "read", "lasts_s": 30 * 86400.0, "user": ""})
    assert "has expired" in shell("token", "ls").out
    assert "s3cret" in shell("token", "rotate", "ci").out
    assert shell("token", "revoke", "ci").out == "token ci is revoked\n"
    assert [one[:2] for one in asked[1:]] == [("POST", "/tokens/ci/rotate"), ("DELETE", "/tokens/ci")]


def test_the_log_says_who_did_what(shell: Shell, asked: list[tuple[str, str, Any]]) -> None:
    lines = shell("audit", "--since", "1d", "--user", "ann").out.splitlines()
    assert [name for name, _ in asked[0][2]] == ["user", "since", "limit"]
    assert all(part in lines[2] for part in ("POST /v1/jobs", "jobs 12 of ann", "pid 7", "201"))
    assert all(part in lines[3] for part in ("PUT /v1/policy", "only operators", "token ci", "403"))
    assert "3 entries before this are lost" in lines[4]
    assert json.loads(shell("audit", "--json").out) == ENTRIES
