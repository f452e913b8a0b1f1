"""One Ray over three machines for all tests of this folder. Each test finds it whole, whatever the one before did."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from machines import Machines

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))


@pytest.fixture(scope="session")
def _machines() -> Iterator[Machines]:
    if not find_spec("ray"):
        pytest.skip("needs ray")
    machines = Machines(3)
    machines.start()
    try:
        yield machines
    finally:
        machines.close()


@pytest.fixture
def machines(_machines: Machines) -> Machines:
    """Three machines with Ray."""
    _machines.repair()
    return _machines
