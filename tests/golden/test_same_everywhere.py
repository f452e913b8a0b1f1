"""Every policy decides the same to the bit, whatever CPU, BLAS, libm and Python are underneath.

`digests.json` holds what all machines must agree on. `python tests/golden/everywhere.py --write` writes it anew, for a
change of behaviour that is meant. `benchmarks/every_cpu.py` compares longer runs.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
from everywhere import FILE, QUICK, digests, elsewhere, environments, runs

COMMITTED = json.loads(FILE.read_text())


def test_this_machine_decides_as_all_others_do() -> None:
    assert digests(QUICK) == COMMITTED


def test_every_policy_has_a_digest() -> None:
    assert list(COMMITTED) == [name for name, _, _ in runs()]


@pytest.mark.parametrize("name", environments())
def test_another_cpu_decides_the_same(name: str) -> None:
    assert elsewhere(environments()[name]) == COMMITTED


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")
def test_compiled_kernels_decide_the_same() -> None:
    assert elsewhere({}, "--compiled") == COMMITTED
