"""What one user, and all users together, may ask for: each refusal names the bound and where to raise it."""

from __future__ import annotations

import pytest

from fairway.runtime.daemon.bounds import BoundsGuard, TooOftenError
from fairway.runtime.daemon.config import Bounds, NotAdmittedError, parse_config
from fairway.runtime.jobs.records import JobRecord
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.jobs.shared_environment import sharing
from fairway.runtime.jobs.store import Holdings


def _one(user: str = "ann", **about: object) -> JobRequest:
    return JobRequest(command=("true",), user=user, **about)  # type: ignore[arg-type]


def _held(*requests: JobRequest) -> Holdings:
    held = Holdings()
    for number, request in enumerate(requests):
        held.take(JobRecord(number, str(number + 1), request, 0.0))
    return held


def _refusal(requests: list[JobRequest], bounds: Bounds, held: Holdings | None = None) -> str:
    with pytest.raises(NotAdmittedError) as caught:
        BoundsGuard().check(requests, bounds, held or Holdings(), 0.0, "/etc/fairway.toml")
    return str(caught.value)


def test_each_bound_refuses_and_says_how_to_raise_it() -> None:
    held = _held(_one("ann"), _one("ann"), _one("bob"))
    tasks = [_one().task(number) for number in range(3)]
    cases = {
        "jobs": _refusal([_one("cy"), _one("cy")], Bounds(jobs=4), held),
        "jobs_per_user": _refusal([_one("ann")], Bounds(jobs_per_user=2), held),
        "array_tasks": _refusal(tasks, Bounds(array_tasks=2)),
        "bytes_per_user": _refusal([_one(env={"A": "x" * 2_000_000})], Bounds(bytes_per_user=1_000_000), held),
    }
    for name, told in cases.items():
        assert f"`{name}` under [limits] in /etc/fairway.toml raises it" in told
    assert cases["jobs_per_user"].startswith("3 jobs of user ann that have not ended: the most is 2.")
    guard = BoundsGuard()
    guard.check([_one("bob")], Bounds(jobs=4, jobs_per_user=2), held, 0.0)
    guard.check(tasks, Bounds(array_tasks=3), held, 0.0)


def test_an_array_counts_its_environment_once_and_its_commands_each() -> None:
    env = {"A": "x" * 900_000}
    tasks = sharing(_one(env=env).task(number) for number in range(4000))
    BoundsGuard().check(tasks, Bounds(), Holdings(), 0.0)
    long = [JobRequest(command=("x" * 100_000,), user="ann").task(number) for number in range(4000)]
    assert "bytes_per_user" in _refusal(long, Bounds())


def test_submissions_are_counted_by_the_minute() -> None:
    guard, bounds = BoundsGuard(), Bounds(submissions_per_minute=60)
    many = [_one().task(number) for number in range(100)]
    for _ in range(60):
        guard.check(many, bounds, Holdings(), 0.0)
    guard.check([_one("bob")], bounds, Holdings(), 0.0)
    with pytest.raises(TooOftenError, match="submissions_per_minute"):
        guard.check([_one()], bounds, Holdings(), 0.5)
    guard.check([_one()], bounds, Holdings(), 1.5)
    with pytest.raises(TooOftenError):
        guard.check([_one()], bounds, Holdings(), 1.6)


def test_the_configuration_has_bounds_and_retention() -> None:
    config = parse_config(
        '[limits]\njobs_per_user = 5\nbytes_per_user = "2M"\n[retention]\nkeep_s = "7d"\nkeep_jobs = 9'
    )
    assert (config.limits.jobs_per_user, config.limits.bytes_per_user, config.limits.jobs) == (5, 2 << 20, 100_000)
    assert (config.retention.keep_s, config.retention.keep_jobs) == (7 * 86400.0, 9)
    plain = parse_config("")
    assert (plain.retention.keep_s, plain.retention.keep_jobs) == (30 * 86400.0, 50_000)
