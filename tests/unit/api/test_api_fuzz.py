"""Hundreds of requests made from the OpenAPI document, sound and broken: no 5xx, and no change by a refusal."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_site import Never, fingerprint
from hypothesis import HealthCheck, given, settings

from fairway.api.app import make_app
from fairway.api.people import Access
from fairway.runtime.daemon.daemon import Daemon, Options
from fairway.testing.seeds import ALL

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = 50 if ALL else 10
MOST_MADE = 300
"""Requests that are made for a limit on sizes need not be larger than this; very large ones are tested by hand."""
ENDLESS = "/v1/events"
"""It never ends, so it cannot be called like this; it has tests of its own."""


class _Site:
    """One daemon for all examples; requests come from root, so that nothing is refused for want of rights."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.daemon = Daemon(Options(Path(self._folder.name), policy="fifo", gpus="4"))
        self.daemon.scheduler.guard.use(Never())
        # A policy whose name is made at random by chance is not to start anybody either.
        set_policy = self.daemon.scheduler.set_policy
        self.daemon.scheduler.set_policy = lambda policy, text: set_policy(Never(), text)  # type: ignore[method-assign]
        # Commands made at random are not to be run, whatever happens.
        self.daemon.scheduler.engine.attempts._start = self._refuse  # type: ignore[method-assign]
        # Programs, sizes and queues made at random are hardly ever there.
        self.daemon.scheduler.site.start_problem = lambda wish: ""  # type: ignore[method-assign]
        self.daemon.scheduler.commands._largest = lambda: None
        self.daemon.settings.refuse = lambda requests: None  # type: ignore[method-assign]
        self._app = make_app(self.daemon, Access(own_uid=4321))
        self.daemon.start()

    def _refuse(self, job: int, target: Any) -> None:
        raise AssertionError("a job was started")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope = {**scope, "client": ("uid:0", 1)}
        await self._app(scope, receive, send)

    def document(self) -> dict[str, Any]:
        made: dict[str, Any] = _without_large_limits(self._app.openapi())
        return made

    def close(self) -> None:
        self._app.state.context.audit.close()
        self.daemon.close()
        self._folder.cleanup()


def _without_large_limits(part: Any) -> Any:
    if isinstance(part, dict):
        sizes = ("maxLength", "maxItems", "maxProperties")
        return {
            name: _without_large_limits(value)
            for name, value in part.items()
            if not (name in sizes and isinstance(value, int) and value > MOST_MADE)
        }
    return [_without_large_limits(one) for one in part] if isinstance(part, list) else part


site = _Site()
schema = schemathesis.openapi.from_dict(site.document())
schema.app, schema.location = site, "/v1/openapi.json"
schema = schema.exclude(path=ENDLESS)
schema.config.generation.update(modes=[schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
# It takes seconds to list the limits of all fields, in every process that collects tests.
schema.config.phases.coverage.enabled = ALL


@pytest.fixture(scope="module", autouse=True)
def _closing() -> Iterator[None]:
    yield
    site.close()


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_scheduler_and_no_refused_one_changes_it(case: Any) -> None:
    before = fingerprint(site.daemon)
    response = case.call()
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.not_a_server_error,
            schemathesis.specs.openapi.checks.status_code_conformance,
            schemathesis.specs.openapi.checks.content_type_conformance,
            schemathesis.specs.openapi.checks.response_schema_conformance,
            schemathesis.specs.openapi.checks.negative_data_rejection,
        ],
    )
    if response.status_code >= 400:
        assert fingerprint(site.daemon) == before
        assert list(json.loads(response.content)) == ["error"]
    assert site.daemon.scheduler.failure is None


def test_both_kinds_of_requests_are_made() -> None:
    answers: Counter[int] = Counter()
    submit = schema["/v1/jobs"]["POST"]

    for mode in schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE:

        @given(case=submit.as_strategy(generation_mode=mode))
        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def ask(case: Any) -> None:
            answers[case.call().status_code] += 1

        ask()
    assert answers[201] > 0
    assert answers[422] > 20
