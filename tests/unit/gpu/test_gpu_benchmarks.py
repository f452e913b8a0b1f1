"""The benchmarks for a real GPU run here with tiny models, so that they do not fail where it counts.

They run with the Python of FAIRWAY_TEST_TORCH_PYTHON, or with this one where it has torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fairway.testing.seeds import ALL, LONG

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.environ.get("FAIRWAY_TEST_TORCH_PYTHON") or (sys.executable if find_spec("torch") else "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason="needs torch")]


def _document(name: str, out: Path, *options: str) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    run = [PYTHON, str(ROOT / "benchmarks" / name), *(options or ("--quick",)), "--out", str(out)]
    subprocess.run(run, env=env, check=True, capture_output=True, timeout=300)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_switching_changes_no_bit_of_a_loss(tmp_path: Path) -> None:
    models = () if ALL else ("--models", "ResNet50", "BERT-base", "GraphSAGE")
    found = _document("gpu_switch.py", tmp_path / "switch.json", "--quick", *models)
    assert len(found["identical"]) == len(found["switch"]) == (8 if ALL else 3)
    assert all(one["identical"] for one in found["identical"])
    assert all(one["first groups"]["switch_ms"] >= 0 for one in found["switch"])


@pytest.mark.skipif(not LONG, reason="takes a minute")
def test_many_jobs_share_a_device(tmp_path: Path) -> None:
    found = _document("gpu_share.py", tmp_path / "share.json")
    assert found["inference"]["lanes"]["requests"] > 0
    assert found["search"]["executor"]["makespan_s"] > 0
    assert found["orders"].keys() >= {"fifo", "srtf", "fair", "pack"}
    assert found["pairs"]["pairs"][0]["lanes"]
    assert found["stress"]["ran_out"] == found["stress"]["wrong"] == 0


@pytest.mark.skipif(not LONG, reason="takes a minute")
def test_twelve_jobs_under_the_live_scheduler_are_forecast(tmp_path: Path) -> None:
    found = _document("gpu_end_to_end.py", tmp_path / "jobs.json", "--quick", "--policy", "hare")
    (run,) = found["runs"]
    assert run["states"] == ["COMPLETED"]
    assert run["mean_jct_s"] > 0 < run["forecast_jct_s"]


@pytest.mark.skipif(not LONG, reason="takes a minute")
def test_guests_are_measured_beside_their_hosts(tmp_path: Path) -> None:
    brief = ("--smoke", "--seconds", "1", "--settle", "2", "--bounds", "0.1")
    found = _document("gpu_guests.py", tmp_path / "guests.json", *brief)
    assert [row["case"] for row in found["rows"]] == 2 * ["free", "antman:eps=0.1", "0.7 + 0.3, turns"]
    assert not any("error" in row for row in found["rows"])
