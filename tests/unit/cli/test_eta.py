"""What `fairway eta` prints, and how expected starts and ends are written."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_samples import Shell
from rich.console import Console

from fairway.cli.eta import _record, between, clock, when
from fairway.client import Client, ClientError, Submitted

ROW: dict[str, Any] = {
    "kind": "start",
    "promises": 120,
    "median_error_s": 300.0,
    "median_relative_error": 0.125,
    "mean_relative_error": 0.2,
    "within": 0.8083,
    "median_width_s": 2400.0,
    "decided_in_all": 3120,
    "within_in_all": 2500,
    "void_in_all": 7,
}
INTERVALS = [{"kind": "start", "why": "intervals are shown"}, {"kind": "finish", "why": "now 12"}]
NOTHING: dict[str, Any] = {"sure": 0.8, "intervals": INTERVALS, "latest": 0, "open": 3, "policies": [], "users": []}


def printed(told: dict[str, Any], width: int = 120) -> list[str]:
    console = Console(width=width)
    with console.capture() as said:
        console.print(_record(told))
    return [line.rstrip() for line in said.get().splitlines()]


def test_the_record_is_shown_by_policy_and_by_user() -> None:
    unknown = dict.fromkeys(("median_error_s", "median_relative_error", "within", "median_width_s"))
    policies = [ROW | {"policy": "srtf"}, ROW | unknown | {"policy": "srtf", "kind": "finish", "promises": 0}]
    lines = printed(NOTHING | {"latest": 120, "policies": policies, "users": [ROW | {"user": "ann"}]})
    assert " ".join(lines[2].split()) == "srtf start 120 5 min 12.5 % 80.8 % 40 min 3,120 7"
    assert " ".join(lines[3].split()) == "srtf end 0 – – – – 3,120 7"
    assert lines[6].split()[:2] == ["ann", "start"]
    last = ["starts: intervals are shown", "ends: now 12"]
    assert lines[-3:] == ["the latest 120 promises that were decided; 3 promises not decided yet", *last]
    assert max(map(len, printed(NOTHING | {"policies": policies, "users": []}, 80))) <= 80
    assert printed(NOTHING) == ["no start and no end that was told is known yet; 3 promises not decided yet", *last]


def test_times_are_as_short_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, real = time.mktime((2023, 11, 14, 22, 13, 20, 0, 0, -1)), time.localtime
    monkeypatch.setattr(time, "time", lambda: now_s)
    monkeypatch.setattr(time, "localtime", lambda date_s=now_s: real(date_s))
    entry = {"start_s": now_s + 600.0, "start_between_s": [now_s, now_s + 10_000.0], "sure": 0.8}
    assert when(entry, "start") == "about 22:23 (80 % sure: 22:13 to Wed 01:00)"
    rough = {"finish_s": now_s + 600.0, "finish_between_s": None, "finish_rough": True, "sure": None}
    assert when(rough, "finish") == "about 22:23 (rough)"
    assert when(entry, "finish") == between(entry, "finish") == ""
    assert clock(now_s + 2e6) == "2023-12-08"


def test_a_submission_on_a_terminal_says_when_the_job_starts(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def why(self: Client, job: str, *, told: str | None = None) -> dict[str, Any]:
        asked.append(told)
        if job == "2":
            raise ClientError("too many forecasts")
        return {"estimate": {"start_s": 1e9, "start_between_s": [1e9, 1e9], "sure": 0.8}}

    monkeypatch.setattr(Client, "why", why)
    monkeypatch.setattr(Client, "status", lambda self: {"export": "ALL", "you": "ann"})
    for job in ("1", "2"):
        rows = Submitted([{"id": job, "reason": ""}], 1)
        monkeypatch.setattr(Client, "submit", lambda self, body, *, key=None, rows=rows: rows)
        assert shell("submit", "--chdir", "/", "--", "true").out == f"job {job} submitted\n"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        told = shell("submit", "--chdir", "/", "--", "true").out
        assert told.startswith(f"job {job} submitted; expected to start about 2001-09-0") == (job == "1")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert asked == ["submit", "submit"]


def test_compare_says_how_good_promises_were(shell: Shell, tmp_path: Path) -> None:
    words = ("compare", shell.trace, "--cluster", "v100:1x4", "--policy", "fifo", "--policy", "srtf", "--jobs", "1")
    assert "ETA" not in shell(*words).out
    table = tmp_path / "runs.csv"
    call = shell(*words, "--promises", "5", "--csv", str(table))
    assert "ETA: the ends that jobs were told at their submission" in call.out
    fifo, srtf = csv.DictReader(table.read_text().splitlines())
    assert (fifo["promise_error"], fifo["promise_within"]) == ("0", "1")
    assert float(srtf["promise_error_mean"]) > 0.0
    for more, told in (
        (("--promises", "-1"), "--promises must be at least 0, not -1"),
        (("--promises", "5", "--rules", "tiresias"), "--promises needs native rules, not tiresias"),
    ):
        refused = shell(*words, *more)
        assert (refused.code, told in refused.err) == (2, True)
