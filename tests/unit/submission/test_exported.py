"""Which variables of a shell go along with a job."""

from __future__ import annotations

import pytest

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import JobRequest
from fairway.submission.draft import Draft
from fairway.submission.exported import EVERYTHING, NOTHING, Export, export_of, exported

MINE = {
    **dict.fromkeys(("MLFLOW_TRACKING_URI", "HTTP_PROXY", "https_proxy", "NO_PROXY", "DATA_DIR", "TMPDIR"), "x"),
    **dict.fromkeys(
        ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "USER", "LOGNAME", "HOME", "PATH", "LD_PRELOAD", "TERM"), "x"
    ),
    **dict.fromkeys(("WANDB_API_KEY", "CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "RANKING", "TERM"), "x"),
}
OTHERS = [
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "FAIRWAY_JOB_ID", "SLURM_JOB_ID", "SLURM_PROCID"),
]


def test_what_is_in_the_shell_goes_along() -> None:
    assert exported(MINE, EVERYTHING) == (MINE, ())
    assert exported(MINE, NOTHING) == ({}, ())


@pytest.mark.parametrize("name", OTHERS)
def test_what_ranks_and_launchers_have_goes_along_only_if_it_is_named(name: str) -> None:
    assert exported({name: "1", **MINE}, EVERYTHING).variables == MINE
    assert exported({name: "1", **MINE}, Export(True, (name,))).variables == {name: "1", **MINE}
    assert exported({name: "1", **MINE}, Export(False, (name,))).variables == {name: "1"}


def test_the_shells_own_state_stays_behind() -> None:
    state = {
        "_": "/bin/fairway",
        "PWD": "/a",
        "OLDPWD": "/b",
        "SHLVL": "3",
        "SSH_CLIENT": "10.0.0.1 7",
        "STY": "1",
    }
    functions = {"BASH_FUNC_module%%": "() { true; }", "a.b": "1"}
    assert exported({**MINE, **state, **functions}, EVERYTHING) == (MINE, ())


def test_what_is_too_large_is_left_out_unless_it_is_named() -> None:
    found = exported({**MINE, "HUGE": "x" * 200_000, "OLD": "caf\udce9"}, EVERYTHING)
    assert found.variables == MINE
    (remark,) = found.remarks
    assert remark.startswith("the job does not get HUGE, OLD of your environment")
    for name, why in ("HUGE", "larger than 131,072 bytes"), ("OLD", "not UTF-8"):
        with pytest.raises(InputError, match=why):
            exported({"HUGE": "x" * 200_000, "OLD": "caf\udce9"}, Export(True, (name,)))


def test_a_request_stays_within_its_bounds() -> None:
    many = {f"V{number}": "x" for number in range(3000)}
    request = Draft({"command": ("true",)}).request({**many, "LONG": "y" * 100})
    assert len(request.env) == 900
    assert "LONG" not in request.env
    (remark,) = exported(many, EVERYTHING).remarks
    assert "and 2092 more" in remark
    large = exported({f"V{number}": "x" * 100_000 for number in range(10)}, EVERYTHING)
    assert len(large.variables) == 5


def test_jobs_from_several_shells_share_their_environment() -> None:
    shells = [{**MINE, "_": f"/{n}", "SHLVL": str(n), "SSH_CLIENT": f"h {n} 22", "OLDPWD": f"/{n}"} for n in range(5)]
    requests = [Draft({"command": ("true",)}).request(shell) for shell in shells]
    assert all(isinstance(one, JobRequest) and one.env == MINE for one in requests)


def test_values_are_given_beside_names() -> None:
    assert export_of("ALL,A=1,B=c=d") == (EVERYTHING, {"A": "1", "B": "c=d"})
    assert export_of("all, RANK ,X") == (Export(True, ("RANK", "X")), {})
    assert export_of("none") == (NOTHING, {})
    assert str(Export(True, ("X",))) == "ALL,X"
