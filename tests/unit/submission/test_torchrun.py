"""torchrun commands: what they become, and what cannot be mapped."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.core.errors import InputError
from fairway.submission.draft import gpu_fields
from fairway.submission.quantities import gpus
from fairway.submission.torchrun import from_torchrun, is_torchrun


def read(line: str, asked: str | None = None) -> dict[str, Any]:
    return dict(from_torchrun(line.split(), gpu_fields(gpus(asked)) if asked else {}).fields)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("torchrun train.py", True),
        ("/opt/venv/bin/torchrun train.py", True),
        ("python -m torch.distributed.run train.py", True),
        ("python3.11 -m torch.distributed.launch train.py", True),
        ("python train.py", False),
        ("python -m torch.distributed", False),
        ("echo torchrun", False),
    ],
)
def test_torchrun_is_known_by_its_names(line: str, known: bool) -> None:
    assert is_torchrun(line.split()) is known


def test_a_range_of_nodes_is_the_elastic_range() -> None:
    fields = read("torchrun --nnodes=1:4 --nproc-per-node=8 train.py --lr 0.1")
    assert (fields["gpus"], fields["gpus_min"], fields["gpus_max"]) == (8, 8, 32)
    assert fields["processes"] == "per_gpu"
    assert fields["command"] == ("python", "-u", "train.py", "--lr", "0.1")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("torchrun -m pkg.train --x", ("python", "-u", "-m", "pkg.train", "--x")),
        ("torchrun --no-python ./train --x", ("./train", "--x")),
        ("/v/bin/torchrun train.py", ("/v/bin/python", "-u", "train.py")),
        ("/v/bin/python3 -m torch.distributed.run train.py", ("/v/bin/python3", "-u", "train.py")),
        ("torchrun --standalone --nproc_per_node 2 train.py --nnodes 9", ("python", "-u", "train.py", "--nnodes", "9")),
        ("torchrun -- train.py", ("python", "-u", "train.py")),
    ],
)
def test_what_each_rank_runs(line: str, command: tuple[str, ...]) -> None:
    assert read(line)["command"] == command


def test_both_ways_to_write_an_option() -> None:
    for line in (
        "torchrun --nproc_per_node 4 t.py",
        "torchrun --nproc-per-node=4 t.py",
        "torchrun --nproc_per_node=4 t.py",
    ):
        assert read(line)["gpus"] == 4


def test_all_gpus_are_as_many_as_were_asked_for_beside_it() -> None:
    assert read("torchrun --nproc-per-node=gpu train.py", "4")["gpus"] == 4
    fields = read("torchrun --nproc-per-node=auto train.py", "1-4")
    assert (fields["gpus_min"], fields["gpus_max"]) == (1, 4)


def test_restarts_are_retries() -> None:
    assert read("torchrun --max-restarts=3 train.py")["retries"] == 3


def test_the_same_number_may_be_said_twice() -> None:
    assert read("torchrun --nproc-per-node=8 train.py", "8")["gpus"] == 8


@pytest.mark.parametrize(
    ("line", "asked", "says"),
    [
        ("torchrun --nproc-per-node=2 train.py", "1", "says something else"),
        ("torchrun --nproc-per-node=gpu train.py", None, "say how many with --gpus"),
        ("torchrun --nproc-per-node=cpu train.py", "4", "cannot be mapped"),
        ("torchrun --rdzv-backend=etcd train.py", None, "cannot be mapped"),
        ("torchrun --node-rank=1 train.py", None, "cannot be mapped"),
        ("torchrun --run-path train.py", None, "cannot be mapped"),
        ("torchrun --unheard-of=1 train.py", None, "not known here"),
        ("torchrun --nnodes=4:1 train.py", None, "the smaller number comes first"),
        ("torchrun --nnodes=two train.py", None, "neither a number"),
        ("torchrun --max-restarts=x train.py", None, "not a number"),
        ("torchrun --nnodes", None, "value is missing"),
        ("torchrun --nproc-per-node=2", None, "no script"),
        ("torchrun", None, "no script"),
    ],
)
def test_what_cannot_be_mapped_is_an_error_that_says_so(line: str, asked: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(line, asked)


def test_how_ranks_meet_is_left_out_silently_and_the_rest_with_a_remark() -> None:
    line = "torchrun --rdzv-backend=c10d --rdzv-endpoint=h:1 --rdzv-id=7 --log-dir=x train.py"
    (remark,) = from_torchrun(line.split(), {}).remarks
    assert "--log-dir" in remark


def test_the_old_launcher_is_refused_unless_it_sets_variables_only() -> None:
    launch = ("python3", "-m", "torch.distributed.launch")
    with pytest.raises(InputError, match="adds --local-rank"):
        from_torchrun((*launch, "--nproc-per-node=2", "train.py"), {})
    draft = from_torchrun((*launch, "--use_env", "--nproc_per_node=2", "train.py"), {})
    assert draft.fields["command"] == ("python3", "-u", "train.py")
