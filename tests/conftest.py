"""Shared settings: property tests are repeatable, and a failure prints what repeats it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fairway",
    deadline=None,
    derandomize=True,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("fairway")
