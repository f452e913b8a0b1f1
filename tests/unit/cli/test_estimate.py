"""`fairway lab estimate` reports the errors of the throughput estimator on a profile, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_samples import Shell

MODELS = ("ResNet-18", "LM", "A3C", "CycleGAN", "Transformer", "Recommendation")


def profile(pairs: bool = True) -> str:
    """Six kinds on two GPU types; the greedier of two keeps more, and CycleGAN fits beside nobody on a K80."""
    tables: dict[str, dict[str, dict[str, object]]] = {}
    for gpu, speed in (("v100", 10.0), ("k80", 2.0)):
        for i, a in enumerate(MODELS):
            row: dict[str, object] = {"null": speed * (i + 1)}
            for j, b in enumerate(MODELS):
                if pairs:
                    full = gpu == "k80" and "CycleGAN" in (a, b)
                    kept = [0.4 + 0.1 * (i - j) / 5 + 0.3 * (gpu == "v100"), 0.4 + 0.1 * (j - i) / 5]
                    row[f"('{b}', 1)"] = [0, 0] if full else [kept[0] * speed * (i + 1), kept[1] * speed * (j + 1)]
            tables.setdefault(gpu, {})[f"('{a}', 1)"] = row
    return json.dumps(tables)


@pytest.fixture
def path(shell: Shell) -> str:
    return shell.write("pairs.json", profile())


def test_the_table_names_every_way_to_estimate(shell: Shell, path: str) -> None:
    call = shell("lab", "estimate", "--profile", path, "--measured", "0.3,0.6", "--seeds", "1")
    assert call.code == 0
    assert "pairs.json (6 job types on v100, k80)" in call.out
    assert "11 of 72 do not fit in memory" in call.out
    assert [name in call.out for name in ("mixed", "completed", "nearest", "published", "mean", "built-in")] == [
        True
    ] * 6
    assert "30 %" in call.out
    assert "60 %" in call.out


def test_json_has_the_scores(shell: Shell, path: str) -> None:
    out = shell.path("errors.json")
    call = shell("lab", "estimate", "--profile", path, "--measured", "0.4", "--seeds", "2", "--json", out)
    assert "mixed" in call.out
    document = json.loads(
        shell("lab", "estimate", "--profile", path, "--measured", "0.4", "--seeds", "2", "--json", "-").out
    )
    assert json.loads(Path(out).read_text()) == document
    assert (document["job_types"], document["entries"], document["misfits"]) == (6, 72, 11)
    scores = {score["method"]: score for score in document["scores"]}
    # a newcomer has 5 partners on 2 types; 4 of the 10 pairs are measured
    assert scores["mixed"]["pairs"] == 2 * 6 * 6
    assert scores["mixed"]["mean"] < scores["mean"]["mean"]
    assert document["alone"] == pytest.approx({"v100": 1.0, "k80": 1.0}, rel=0.02)


def test_the_same_call_gives_the_same_figures(shell: Shell, path: str) -> None:
    calls = [shell("lab", "estimate", "--profile", path, "--seeds", "1", "--json", "-").out for _ in range(2)]
    assert calls[0] == calls[1]


def test_a_model_can_be_left_out_as_a_whole(shell: Shell) -> None:
    twice = profile().replace("'LM'", "'A3C (batch size 8)'").replace("'A3C'", "'A3C (batch size 4)'")
    path = shell.write("twice.json", twice)
    pairs = {}
    for by in ("type", "model"):
        text = shell("lab", "estimate", "--profile", path, "--measured", "0.5", "--hold-out", by, "--json", "-").out
        pairs[by] = json.loads(text)["scores"][0]["pairs"]
    assert pairs["model"] < pairs["type"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--measured", "0"], "--measured '0': each part must be between 0 and 1"),
        (["--measured", "0.1,x"], "--measured '0.1,x' is not a list of numbers"),
        (["--measured", "nan"], "each part must be between 0 and 1"),
        (["--seeds", "0"], "--seeds must be from 1 to"),
        (["--worth", "2"], "--worth must be between 0 and 2"),
        (["--hold-out", "batch"], "'--hold-out'"),
        (["--json", "nowhere/out.json"], "there is no directory"),
    ],
)
def test_senseless_options_are_one_line(shell: Shell, path: str, more: list[str], says: str) -> None:
    call = shell("lab", "estimate", "--profile", path, *more)
    assert call.code == 2
    assert len(call.err_lines) == 1
    assert says in call.err


def test_profiles_without_pairs_are_refused(shell: Shell) -> None:
    call = shell("lab", "estimate", "--profile", shell.write("alone.json", profile(pairs=False)))
    assert call.code == 2
    assert "needs pairs of at least 3 job types" in call.err
    call = shell("lab", "estimate", "--profile", str(shell.folder))
    assert call.code == 2
    assert len(call.err_lines) == 1
    call = shell("lab", "estimate", "--profile", shell.write("x.json", "{}"))
    assert call.code == 2
    assert "missing option '--profile'" in shell("lab", "estimate").err
