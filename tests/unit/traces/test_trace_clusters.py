"""Cluster specifications: in line, TOML, and the node lists of public traces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.core.errors import InputError
from fairway.core.hardware import GIB
from fairway.traces import read_cluster

TOML = """\
[[nodes]]
type = "v100"
count = 2
gpus = 4
rack = "r1"

[[nodes]]
type = "Mine"
gpus = 8
name = "big"

[types.Mine]
memory_gib = 96
price_per_hour = 1.5
speed = 3

[types.v100]
memory_gib = 32
"""


def test_a_pool_is_a_single_node() -> None:
    cluster = read_cluster("v100:32")
    assert [(node.name, node.gpus) for node in cluster.nodes] == [("v100-0", 32)]
    assert cluster.text == "v100:32"


def test_nodes_times_gpus_and_mixed_types() -> None:
    cluster = read_cluster("v100:2x4, A100:1x8,v100:8")
    assert [(node.name, node.gpu_type, node.gpus) for node in cluster.nodes] == [
        ("v100-0", "v100", 4),
        ("v100-1", "v100", 4),
        ("a100-0", "a100", 8),
        ("v100-2", "v100", 8),
    ]
    assert [kind.name for kind in cluster.types] == ["v100", "a100"]


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "  ",
        "x",
        "v100",
        "v100:",
        "v100:0",
        "v100:0x4",
        "v100:4x0",
        "v100:-4",
        "v100:x",
        "v100:4x",
        "v100:x4",
        "v100:4x4x4",
        "v100:4.5",
        "v100:4,",
        ",v100:4",
        "v100:1000001",
        "v100:1000x1001",
        "v100:600000,a100:600000",
        "v100:" + "9" * 5000,
        "banana:4",
        "v100 4",
        "v100:٣",
        "a/\0b",
        "a" * 300 + ".toml",
    ],
)
def test_nonsense_is_refused_in_one_line(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        read_cluster(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_largest_cluster_is_allowed() -> None:
    assert read_cluster("v100:1x1000000").gpu_count == 1_000_000


@given(st.text(max_size=12))
def test_any_text_is_a_cluster_or_an_input_error(spec: str) -> None:
    with suppress(InputError):
        assert read_cluster(spec).gpu_count > 0


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(TOML)
    cluster = read_cluster(str(path))
    assert [(n.name, n.gpu_type, n.gpus, n.rack) for n in cluster.nodes] == [
        ("v100-0", "v100", 4, "r1"),
        ("v100-1", "v100", 4, "r1"),
        ("big", "mine", 8, ""),
    ]
    v100, mine = cluster.types
    assert (mine.memory_bytes, mine.price_per_h, mine.speed) == (96 * GIB, 1.5, 3.0)
    assert (v100.memory_bytes, v100.speed, v100.price_per_h) == (32 * GIB, 1.0, 2.48)


TOML_ERRORS = {
    "syntax": ("[[nodes]]\ntype = \n", ":2: ", "not valid TOML"),
    "open": ('[[nodes]]\ntype = "v100', ":2: ", "not valid TOML"),
    "unknown top key": ("node = 3\n", ": ", "unknown key 'node'"),
    "unknown node key": (TOML.replace("rack", "rak"), ":1: ", "unknown key 'rak'"),
    "unknown type key": (TOML.replace("price_per_hour", "price"), ":12: ", "unknown key 'price'"),
    "text for a count": (TOML.replace("count = 2", 'count = "2"'), ":1: ", "count '2' is not a whole number"),
    "true for a count": (TOML.replace("count = 2", "count = true"), ":1: ", "count True is not a whole number"),
    "no GPUs": (TOML.replace("gpus = 8", "gpus = 0"), ":7: ", "gpus 0 is less than 1"),
    "gpus missing": (TOML.replace("gpus = 8\n", ""), ":7: ", "'gpus' is missing"),
    "unknown type": (TOML.replace('"Mine"', '"Yours"'), ":7: ", "unknown GPU type 'yours'"),
    "bad speed": (TOML.replace("speed = 3", "speed = nan"), ":12: ", "speed nan is not a number"),
    "no speed": (TOML.replace("speed = 3\n", ""), ":12: ", "needs memory_gib and speed"),
    "zero speed": (TOML.replace("speed = 3", "speed = 0"), ":12: ", "speed 0 is not a positive number"),
    "name twice": (TOML.replace('"big"', '"v100-1"'), ":7: ", "two nodes are called 'v100-1'"),
    "too many": (TOML.replace("count = 2", "count = 1000000"), ":1: ", "more than 1000000 GPUs"),
    "no nodes": ("[types.v100]\nspeed = 1\n", ": ", "there are no nodes"),
    "long number": (f"x = {'9' * 5000}\n", ": ", "not valid TOML"),
}


@pytest.mark.parametrize("case", TOML_ERRORS)
def test_a_bad_toml_file_is_named_with_its_line(tmp_path: Path, case: str) -> None:
    text, where, what = TOML_ERRORS[case]
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_cluster(str(path))
    assert str(caught.value).startswith(f"{path}{where}")
    assert what in str(caught.value)


def test_a_tiresias_cluster_has_its_switches_as_racks(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,3,4,128,256\n")
    cluster = read_cluster(str(path))
    assert (len(cluster.nodes), cluster.gpu_count) == (6, 24)
    assert [node.rack for node in cluster.nodes] == ["switch-0"] * 3 + ["switch-1"] * 3


def test_alibaba_nodes_without_a_gpu_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\nb,1,1,2,P100\nc,1,1,8,V100M32\n")
    cluster = read_cluster(str(path))
    assert [(node.name, node.gpu_type, node.gpus) for node in cluster.nodes] == [("b", "p100", 2), ("c", "v100m32", 8)]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("num_switch,num_node_p_switch,num_gpu_p_node\n1,0,4\n", ":2: num_node_p_switch '0'"),
        ("num_switch,num_node_p_switch,num_gpu_p_node\n1,2\n", ":2: expected 3 columns"),
        ("num_switch,num_node_p_switch,num_gpu_p_node\n9999,9999,9\n", ":2: the cluster has more than"),
        ("num_switch,num_node_p_switch,num_gpu_p_node\n", ": the cluster has no nodes"),
        ("sn,gpu,model\na,2,P100\na,2,P100\n", ":3: two nodes are called 'a'"),
        ("sn,gpu,model\na,2,Z9\n", ":2: unknown GPU type 'z9'"),
        ("x,y\n1,2\n", ":1: this is no cluster file; columns seen: x, y"),
    ],
)
def test_a_bad_node_list_is_named_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "n.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_cluster(str(path))
    assert str(caught.value).startswith(f"{path}{where}")


def test_a_missing_file_is_said_to_be_missing() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster("nowhere/cluster.toml")
