"""Policy cases of the Gavel family: inputs and expected answers of one allocation each, as a JSON file.

The usual file is beside the repository (`../shared/data/gavel/policy_cases.json`); `FAIRWAY_POLICY_CASES` names another
one of the same format. `fairway reproduce gavel-policies` asks the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairway.reproduce.systems.gavel.policy_cases import (
    PolicyCase,
    WrongAnswerError,
    check_answer,
    has_published_form,
    policy_case,
    read_cases,
)

USUAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gavel" / "policy_cases.json"
FILE = Path(os.environ.get("FAIRWAY_POLICY_CASES") or USUAL)
CASES = read_cases(FILE) if FILE.exists() or FILE != USUAL else []
pytestmark = pytest.mark.skipif(not CASES, reason="the policy cases are not here")


def _asked() -> list[Any]:
    """Every case; once more in its published form where that solves the same program in another way."""
    cases = [policy_case(data) for data in CASES]
    plain = [pytest.param(case, False, id=case.id) for case in cases]
    return [
        *plain,
        *(pytest.param(case, True, id=f"{case.id}-published") for case in cases if has_published_form(case)),
    ]


@pytest.mark.parametrize(("case", "published"), _asked())
def test_the_policy_answers_as_the_case_says(case: PolicyCase, published: bool) -> None:
    check_answer(case, published=published)


def test_a_wrong_answer_is_noticed() -> None:
    data = next(data for data in CASES if data["id"] == "maxmin_perf_paper_3j")
    about = data["expected"] | {"objective": 1.01 * data["expected"]["objective"], "independent_objective": None}
    with pytest.raises(WrongAnswerError, match="objective"):
        check_answer(policy_case(data | {"expected": about}), published=False)
