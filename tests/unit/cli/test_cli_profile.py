"""`fairway profile`: the measurements of a live scheduler as a table and as a file for simulations."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cli_samples import Shell

from fairway.client import Client
from fairway.models.measured_profile import MeasuredProfile
from fairway.models.names import ProfileKey

ANT, BEE = ProfileKey("ResNet-18", 32, 1), ProfileKey("LM", None, 1)


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> MeasuredProfile:
    """A scheduler that has measured this."""
    measured = MeasuredProfile()

    def answer(self: Client, method: str, path: str, body: Any = None, **more: Any) -> Any:
        assert (method, path) == ("GET", "/profile")
        sharing = dict(more["query"]).get("sharing")
        return measured.rows() | {"throughputs": measured.document(sharing)}

    monkeypatch.setattr(Client, "_json", answer)
    return measured


def fill(profile: MeasuredProfile) -> None:
    now_s = time.time() - 120
    profile.note_speed("v100", ANT, 20.0, now_s)
    profile.note_speed("v100", BEE, 10.0, now_s)
    profile.note_pair("v100", ANT, BEE, (0.8, 0.6), now_s, "mps")


def test_a_table_shows_speeds_and_pairs(shell: Shell, profile: MeasuredProfile) -> None:
    fill(profile)
    out = shell("profile", "show").out
    assert "ResNet-18 · batch 32" in out
    for words in ("steps/s alone", "mps", "80.0 %", "60.0 %", "1.40", "2 min"):
        assert words in out, words
    assert json.loads(shell("profile", "show", "--json").out)["pairs"][0]["kept"] == [0.6, 0.8]


def test_a_file_is_read_by_a_simulation(shell: Shell, profile: MeasuredProfile) -> None:
    fill(profile)
    path = shell.path("measured.json")
    assert shell("profile", "export", path).out == f"saved in {path}: 2 speeds, 1 pair\n"
    told = shell("simulate", shell.trace, "--cluster", "v100:4", "--policy", "fifo", "--profile", path)
    assert told.code == 0
    assert json.loads(shell("profile", "export", "-").out) == profile.document()
    assert shell("profile", "export", path, "--sharing", "lanes").code == 2


def test_before_anything_is_measured_nothing_is_written(shell: Shell, profile: MeasuredProfile) -> None:
    assert shell("profile", "show").out == "nothing was measured yet: jobs have to report their steps\n"
    call = shell("profile", "export", shell.path("measured.json"))
    assert (call.code, len(call.err_lines)) == (2, 1)
    assert "measured.json" not in shell.files()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "this is not JSON"),
        ("{}", "this is not a throughput file"),
        ('{"version": 9}', "must map job types to rates"),
        ('{"v100": {"(\'a\', 1)": {"null": -1}}}', "is not a rate of at least 0"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(shell: Shell, text: str, told: str) -> None:
    path = shell.write("damaged.json", text)
    call = shell("simulate", shell.trace, "--cluster", "v100:4", "--policy", "fifo", "--profile", path)
    assert (call.code, len(call.err_lines)) == (2, 1)
    assert told in call.err
