"""The tutorial is true: its code runs, in the order in which it is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairway.core.check import check
from fairway.policies import load_plugin, registry
from fairway.testing import check_policy, random_snapshot

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-policy.md"
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the plug-in of the first block in it; what it registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    (tmp_path / "my_policy.py").write_text(next(code for language, code in BLOCKS if language == "python"))
    return tmp_path


def test_the_guide_has_a_policy_of_about_25_lines() -> None:
    first = next(code for language, code in BLOCKS if language == "python")
    body = first[first.index("@register") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 25


def test_a_policy_with_memory_is_a_file_of_about_40_lines(here: Path) -> None:
    code = next(code for language, code in BLOCKS if "class Stride" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    (here / "stride.py").write_text(code)
    load_plugin("stride.py")
    check_policy("stride", work_conserving=True)


@pytest.mark.parametrize("code", [code for language, code in BLOCKS[1:] if language == "python"])
def test_every_block_of_python_runs(here: Path, code: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    for name in ("largest_that_fits", "count_rounds", "lottery"):
        if name in names:
            _check_function(names[name])


def _check_function(decide: Any) -> None:
    for seed in range(20):
        snapshot = random_snapshot(seed, mixed=False)
        if not len(snapshot.protected_rows):
            check(snapshot, decide(snapshot))


def test_the_commands_run(here: Path) -> None:
    from fairway.traces import gavel_like, write_trace

    pytest.importorskip("fairway.cli.main")
    write_trace(gavel_like(jobs=10, seed=1), str(here / "jobs.jsonl"))
    commands = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    assert len(commands) == 3
    for command in commands:
        words = command.split()
        program = [str(Path(sys.executable).parent / "fairway")] if words[0] == "fairway" else [sys.executable]
        done = subprocess.run([*program, *words[1:]], capture_output=True, text=True, check=False, cwd=here)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
