"""`fairway lab skew` names the largest tensors and the verdict, for known models and for the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_samples import Shell

MODEL = """
class Parameter:
    def __init__(self, count):
        self.count = count
    def numel(self):
        return self.count
    def element_size(self):
        return 4

class Net:
    def named_parameters(self):
        return [("stem", Parameter(100)), ("head", Parameter(300))]
    def parameters(self):
        return [p for _, p in self.named_parameters()]

def make():
    print("building")
    return Net()

net = Net()
number = 7

def breaks():
    raise RuntimeError("first\\nsecond")

def ends():
    raise SystemExit(3)

def wrong():
    return [1, 2]
"""


def test_a_known_model_gets_a_table_with_the_verdict(shell: Shell) -> None:
    call = shell("lab", "skew", "vgg16")
    assert call.code == 0
    assert "392.0 MiB (74.3 %)  fc6.weight" in call.out
    assert "keep the gang together" in call.out
    assert "any free GPUs will do" in shell("lab", "skew", "ResNet-50").out


def test_json_has_the_figures(shell: Shell) -> None:
    figures = json.loads(shell("lab", "skew", "alexnet", "--json").out)
    assert figures["consolidate"] is True
    assert figures["largest"][0] == {"name": "fc6.weight", "bytes": 144 * 2**20}
    assert figures["skew"] == pytest.approx(0.618, abs=5e-4)
    assert figures["imbalance"]["4"] == pytest.approx(4 * figures["skew"])


def test_without_a_model_all_known_ones_are_listed(shell: Shell) -> None:
    call = shell("lab", "skew")
    assert call.code == 0
    assert "VGG19" in call.out
    assert "Inception4" in call.out
    listed = json.loads(shell("lab", "skew", "--json").out)
    assert len(listed) == len(call.out.splitlines()) == 18


def test_the_threshold_decides(shell: Shell) -> None:
    assert json.loads(shell("lab", "skew", "vgg16", "--json", "--threshold", "0.9").out)["consolidate"] is False
    assert json.loads(shell("lab", "skew", "resnet50", "--json", "--threshold", "0.01").out)["consolidate"] is True


@pytest.mark.parametrize("name", ["make", "Net", "net"])
def test_a_factory_a_class_and_a_model_in_a_file_are_read(shell: Shell, name: str) -> None:
    path = shell.write("own_net.py", MODEL)
    call = shell("lab", "skew", f"{path}:{name}", "--json")
    assert call.code == 0
    figures = json.loads(call.out)
    assert figures["skew"] == 0.75
    assert figures["total_bytes"] == 1600


def test_a_module_of_the_current_directory_is_found(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.write("net_from_here.py", MODEL)
    monkeypatch.chdir(Path(shell.folder))
    call = shell("lab", "skew", "net_from_here:make")
    assert call.code == 0
    assert "75.0 %" in call.out
    assert "building" in call.err


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("gpt-17", "unknown model 'gpt-17'; known: VGG11, "),
        (":make", "is not a model"),
        ("{file}:", "is not a model"),
        ("{dir}/missing.py:make", "missing.py:make: no such file"),
        ("no_such_package.models:make", "No module named 'no_such_package'"),
        ("{file}:nothing", "there is no 'nothing' in it"),
        ("{file}:number", "'number' is a int, not something to call"),
        ("{file}:breaks", "RuntimeError: first second"),
        ("{file}:ends", "it ends the program"),
        ("{file}:wrong", "a list has no parameters()"),
    ],
)
def test_a_wrong_target_is_one_clear_line(shell: Shell, target: str, message: str) -> None:
    path = shell.write("own_net.py", MODEL)
    call = shell("lab", "skew", target.format(file=path, dir=shell.folder))
    assert call.code == 2
    assert call.out == ""
    assert len(call.err_lines) == 1
    assert message in call.err


@pytest.mark.parametrize("threshold", ["-1", "1.5", "nan"])
def test_a_senseless_threshold_is_refused(shell: Shell, threshold: str) -> None:
    call = shell("lab", "skew", "vgg16", "--threshold", threshold)
    assert call.code == 2
    assert "--threshold" in call.err
