"""As which user the processes of a job run: never as root unless root asked for that."""

from __future__ import annotations

import os

import pytest

from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.environment import account_of, own_account


def _of(account: str) -> str:
    return account_of(JobRecord(0, "1", JobRequest(command=("true",), account=account), 1.0))


def test_under_root_a_job_runs_as_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert _of("ada") == "ada"
    assert _of("root") == ""


def test_under_root_a_job_without_an_account_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PermissionError, match="does not say as which user it runs"):
        _of("")


def test_under_anybody_else_all_jobs_run_as_the_scheduler_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert [_of(account) for account in ("", "ada", "root")] == [""] * 3
    assert own_account() == "4711"
