"""Policies of files of one's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairway.core.errors import InputError
from fairway.policies import load_plugin, make_policy, registry

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
import fairway

{kind} = int

@fairway.register
@dataclass(frozen=True)
class Own{name}:
    knob: {kind} = 1
    name: ClassVar[str] = "own_{name}"
    knows: ClassVar[frozenset[str]] = frozenset()
    round_s: ClassVar[float] = 0.0

    def decide(self, snapshot):
        return fairway.admit(snapshot, snapshot.submitted_s)
"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def test_files_of_one_name_do_not_stand_in_for_one_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text(OWN.format(name=name, kind=f"Kind_{name}"))
        load_plugin(str(tmp_path / name / "own.py"))
    for name in ("a", "b"):
        made = make_policy(f"own_{name}:knob=7")
        assert made.knob == 7  # type: ignore[attr-defined]


def test_a_file_may_be_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "again.py"
    for kind in ("First", "Second"):
        file.write_text(OWN.format(name="again", kind=kind))
        load_plugin(str(file))
    assert make_policy("own_again:knob=2").knob == 2  # type: ignore[attr-defined]
    assert sum(name.startswith("fairway_plugin_again") for name in sys.modules) == 1


def test_a_file_that_ends_the_program_does_not(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(InputError, match="ends the program"):
        load_plugin(str(tmp_path / "ends.py"))
