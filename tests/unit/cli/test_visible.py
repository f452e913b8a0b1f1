"""Texts of other users on a terminal: no control or direction character gets there, by whatever way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_samples import Shell
from rich.text import Text
from test_live_views import NODES, ROW, STATUS

from fairway.cli import output
from fairway.cli.live_tables import job_table, jobs_table, nodes_table, status_table
from fairway.cli.top import picture
from fairway.cli.visible import visible, visible_json, visible_lines
from fairway.client import Client

EVIL = "a\u202eb\x9b31m\x1b[31m\u2066c\x85\u2028d"
FULL = {
    **ROW,
    "name": EVIL,
    "user": EVIL,
    "queue": EVIL,
    "held": False,
    "private": False,
    "request": {"command": ["x", EVIL], "cwd": f"/{EVIL}", "gpu_types": [EVIL]},
    "progress": {"reported_s": 1.0, "checkpoint": EVIL, "checkpoint_step": 1.0},
    "history": [
        {"number": 1, "gpus": [0], "started_s": 1.0, "launched_s": 1.0, "ended_s": 2.0, "codes": [0], "cause": EVIL}
    ],
}


@pytest.mark.parametrize(
    "what",
    [
        jobs_table([{**ROW, "name": EVIL, "command": EVIL}]),
        job_table(FULL),
        nodes_table([{**NODES[0], "name": EVIL}]),
        status_table({**STATUS, "folder": EVIL, "you": EVIL}),
        picture({"status": STATUS, "nodes": NODES, "jobs": [{**ROW, "name": EVIL}]}, note=EVIL),
        Text(EVIL),
    ],
)
def test_what_is_shown_can_be_printed(what: Any) -> None:
    text = output.rendered(what)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "\\u202e" in text


def test_lines_and_json_too(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    row = {**ROW, "state": "FAILED", "reason": EVIL, "had_ended": False}
    monkeypatch.setattr(Client, "_json", lambda *_, **__: {"jobs": [row]})
    for options in ([], ["--json"]):
        text = shell("suspend", "12", *options).out
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "\\u202e" in text
    assert json.loads(text)[0]["reason"] == EVIL


def test_other_letters_stay_as_they_are() -> None:
    assert visible("größer 日本 🚀") == "größer 日本 🚀"
    assert visible_lines("a\nb\x1b") == "a\nb\\x1b"
    text = json.dumps({"a": "ü\u202e\U000e0001"}, ensure_ascii=False)
    assert visible_json(text) == '{"a": "ü\\u202e\\udb40\\udc01"}'
    assert json.loads(visible_json(text)) == json.loads(text)
