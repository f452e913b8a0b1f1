"""Each mutation still has its place in the code, and tests to notice it. `make mutations` sees whether they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mutate import ROOT, copy_of, make, place_of, run_tests, tried

from mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_what_it_replaces_is_there_once(mutation: Mutation) -> None:
    text = place_of(mutation)
    changed = text.replace(mutation.old, mutation.new)
    assert changed != text
    compile(changed, mutation.file, "exec")
    for test in mutation.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_there_are_thirty_of_them() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS) == 30
    for room in ("core/", "runtime/", "policies/"):
        assert sum(one.file.startswith(room) for one in MUTATIONS) == 10


def test_a_place_that_is_not_there_or_there_twice_is_refused() -> None:
    for old in ("no such text", "import"):
        with pytest.raises(ValueError, match="times, not once"):
            place_of(MUTATIONS[0]._replace(old=old))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small one: a module, and a test of it that sees only one of its two functions."""
    package, tests = tmp_path / "src" / "fairway", tmp_path / "tests"
    for folder in (package, tests):
        folder.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sums.py").write_text("def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n")
    (tests / "test_sums.py").write_text(
        "from fairway.sums import double\n\ndef test_double():\n    assert double(4) == 8\n"
    )
    return tmp_path


def test_a_mistake_that_tests_see_is_caught_and_one_that_they_do_not_see_is_missed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    seen = Mutation("seen", "sums.py", "return 2 * x", "return 4 * x", ("tests",))
    outcome = tried(seen, checkout)
    assert (outcome.caught, outcome.by) == (True, "tests/test_sums.py::test_double")
    assert not tried(Mutation("not seen", "sums.py", "return 3 * x", "return 5 * x", ("tests",)), checkout).caught


def test_a_mistake_is_made_in_the_copy_only_and_leaves_nothing_compiled(checkout: Path, tmp_path: Path) -> None:
    kept = checkout / "src" / "fairway" / "__pycache__"
    kept.mkdir()
    for name in ("sums.cpython-311.pyc", "sums.double-1.py311.nbi", "other.cpython-311.pyc"):
        (kept / name).touch()
    copied = copy_of(checkout, tmp_path / "copy")
    make(Mutation("m", "sums.py", "return 2 * x", "return 4 * x", ()), copied, checkout)
    assert "return 4 * x" in (copied / "fairway" / "sums.py").read_text()
    assert "return 2 * x" in (checkout / "src" / "fairway" / "sums.py").read_text()
    assert [path.name for path in (copied / "fairway" / "__pycache__").iterdir()] == ["other.cpython-311.pyc"]


def test_the_tests_must_use_the_copy(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    with pytest.raises(RuntimeError, match="instead of the copy"):
        run_tests(checkout, checkout / "src", "tests")
