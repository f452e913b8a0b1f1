"""Shared settings: property tests are repeatable, and a failure prints what repeats it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from ci_skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from fairway.policies import registry
from fairway.testing.seeds import ALL

settings.register_profile(
    "fairway",
    deadline=None,
    derandomize=True,
    # All examples are for `make soak`; see fairway.testing.seeds.
    max_examples=200 if ALL else 20,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("fairway")

# Scripts start what runs in the background with SIGINT ignored, and programs hand that on. Tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _own_policies_only() -> Iterator[None]:
    """A plug-in that a test loads is forgotten when the test ends."""
    known = dict(registry._POLICIES)
    yield
    registry._POLICIES.clear()
    registry._POLICIES.update(known)
