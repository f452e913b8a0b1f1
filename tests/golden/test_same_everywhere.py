"""Every policy decides the same to the bit, whatever CPU, BLAS, libm and Python are underneath.

`digests.json` holds what all machines must agree on. `python tests/golden/everywhere.py --write` writes it again, for a
change of behaviour that is meant. `benchmarks/every_cpu.py` compares longer runs.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
from everywhere import FILE, NEWEST, OLDEST, QUICK, SIMPLEX, digests, elsewhere, environments, runs

from fairway.testing.seeds import ALL, some

COMBINED = (OLDEST, NEWEST)
COMMITTED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return digests(QUICK)


def check_elsewhere(found: dict[str, str], request: pytest.FixtureRequest) -> None:
    """The digests of another process are those that are committed; what is not committed is as in this process."""
    assert _committed(found) == COMMITTED
    if ALL:
        assert found == request.getfixturevalue("here")


def _committed(found: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in found.items() if SIMPLEX not in name}


def test_this_machine_decides_as_all_others_do(here: dict[str, str]) -> None:
    assert _committed(here) == COMMITTED


def test_every_policy_has_a_digest() -> None:
    assert set(COMMITTED) == {name for name, _, _ in runs() if SIMPLEX not in name}


@pytest.mark.parametrize("name", environments() if ALL else some(COMBINED, 1))
def test_another_cpu_decides_the_same(name: str, request: pytest.FixtureRequest) -> None:
    check_elsewhere(elsewhere(environments()[name]), request)


@pytest.mark.skipif(not ALL, reason="`make test-all` runs it")
@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")
def test_compiled_kernels_decide_the_same(request: pytest.FixtureRequest) -> None:
    check_elsewhere(elsewhere({}, "--compiled"), request)
