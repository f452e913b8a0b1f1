"""`fairway lab size` says how many nodes keep the utility of a cluster within a band, as a table and as JSON."""

from __future__ import annotations

import json

import pytest
from cli_samples import Shell

from fairway.traces import pollux_like, write_trace


@pytest.fixture
def path(shell: Shell) -> str:
    write_trace(pollux_like(20, seed=1, span_h=1.0), shell.path("tuned.jsonl"))
    return shell.path("tuned.jsonl")


def test_the_sizes_of_a_higher_band_are_smaller(shell: Shell, path: str) -> None:
    found = []
    for band in ("40-60", "70-80"):
        call = shell("lab", "size", path, "--cluster", "t4:48x4", "--band", band, "--json", "-")
        assert call.code == 0
        document = json.loads(call.out)
        assert document["fewest"] <= document["nearest"] <= document["most"]
        utilities = {one["nodes"]: one["utility"] for one in document["tried"]}
        if document["in_band"]:
            low, high = document["band"]
            assert low <= utilities[document["nearest"]] <= high
        found.append(document["nearest"])
    assert found[0] > found[1]


def test_the_table_says_what_was_asked_and_the_answer(shell: Shell, path: str) -> None:
    call = shell("lab", "size", path, "--cluster", "t4:8x4", "--at", "30min", "--band", "0-10")
    assert call.code == 0
    assert "at 30 min" in call.out
    assert "8 nodes of 4 GPUs; no size is within the band, this one is nearest" in call.out


def test_jobs_that_never_fit_are_left_out_and_counted(shell: Shell, path: str) -> None:
    call = shell("lab", "size", path, "--cluster", "t4:1x4", "--json", "-")
    assert json.loads(call.out)["impossible"] > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--band", "65-35"), "--band '65-35' is not a range of percentages such as 35-65"),
        (("--band", "half"), "--band 'half' is not a range of percentages such as 35-65"),
        (("--at", "2000h"), "no job is there at 7200000 s"),
        (("--cluster", "t4:2x4,v100:1x4"), "the nodes of t4:2x4,v100:1x4 are not all alike"),
    ],
)
def test_what_cannot_be_answered_is_one_line(shell: Shell, path: str, options: tuple[str, ...], why: str) -> None:
    call = shell("lab", "size", path, "--cluster", "t4:8x4", *options)
    assert call.code == 2
    assert why in call.err
