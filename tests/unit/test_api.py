"""The public Python API: its names exist, its example works, and importing it is cheap."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import fairway
from fairway.simulator import run


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(fairway, name) is not None for name in fairway.__all__)
    assert set(fairway.__all__) <= set(dir(fairway))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fairway.nonsense  # noqa: B018


def test_the_docstring_example_of_simulate_is_true() -> None:
    outcome = doctest.testmod(run)
    assert outcome.attempted >= 4
    assert outcome.failed == 0


def test_import_is_cheap_and_loads_no_heavy_package() -> None:
    heavy = "numpy torch ray fastapi starlette numba typer rich"
    code = f"import sys, fairway; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_client_is_a_public_name_and_light() -> None:
    code = "import sys, fairway; fairway.Client('/nowhere'); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_simulating_loads_neither_torch_nor_ray_nor_a_web_framework() -> None:
    code = (
        "import sys, fairway\n"
        "jobs = fairway.Workload.of([fairway.JobSpec('a', 0, duration_s=1)])\n"
        "fairway.simulate(jobs, cluster='v100:1', policy='fifo')\n"
        "print([name for name in ('torch', 'ray', 'fastapi', 'starlette', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_gang_that_can_never_run_names_the_job_the_trace_and_the_option() -> None:
    jobs = fairway.Workload.of([fairway.JobSpec("giant", 0, gpus=9, duration_s=1)], source="big.csv")
    with pytest.raises(fairway.InputError, match=r"^big.csv: job 'giant' .* 9 GPUs .* --skip-impossible"):
        fairway.simulate(jobs, cluster="v100:8", policy="fifo")


def test_a_log_can_be_replayed_on_other_hardware() -> None:
    jobs = fairway.Workload.of([fairway.JobSpec("a", 0, duration_s=100, gpu_types=("h100",))])
    with pytest.raises(fairway.InputError, match="asks for h100, which the cluster does not have"):
        fairway.simulate(jobs, cluster="v100:4", policy="fifo")
    assert fairway.simulate(jobs, cluster="v100:4", policy="fifo", any_type=True).jct_s.tolist() == [100]
