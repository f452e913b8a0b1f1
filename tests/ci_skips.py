"""With CI=true a skipped test fails, unless what it lacks is nothing that `.ci/run` installs.

Otherwise a run stays green although a part of Fairway was not tested. A new reason to skip is red in CI until it is
listed here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator

import pytest

MAY_BE_SKIPPED = re.compile(
    # Reference data lies beside some checkouts only.
    r"(is|are) not here$|no folder of public traces"
    # Other commands run what takes long.
    r"|^takes |`make test-all` runs it"
    # No installation brings these.
    r"|needs a GPU|no control groups|controller is delegated"
    # Extensions that CI does without.
    r"|could not import 'torchvision"
    # What one of two simulators does not have, or cannot repeat.
    r"|has no such (policy|variant)|is not repeatable"
)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a failure of a skip."""
    if os.environ.get("CI") != "true" or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = _reason(report)
    if not MAY_BE_SKIPPED.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look at a test that was skipped, or that has skipped itself."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Look at a file of tests that has skipped itself."""
    report = yield
    _refuse(report)
    return report
