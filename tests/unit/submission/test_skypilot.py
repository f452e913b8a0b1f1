"""SkyPilot tasks: what is taken over, what is remarked upon, what is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fairway.core.errors import InputError
from fairway.submission.draft import Draft
from fairway.submission.skypilot import from_task_file


class Tasks:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "task.yaml"

    def read(self, text: str, **env: str) -> Draft:
        self.path.write_text(text)
        return from_task_file(self.path, (), env)


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def test_a_usual_task(tasks: Tasks, tmp_path: Path) -> None:
    draft = tasks.read(
        f"""
name: finetune
num_nodes: 2
resources:
  accelerators: A100:4
envs:
  SEED: 3
  FAST: true
  MODEL: null
workdir: {tmp_path}
setup: pip list
run: |
  python train.py
""",
        MODEL="bert",
    )
    fields = draft.fields
    assert (fields["name"], fields["gpus"], fields["gpu_types"]) == ("finetune", 8, ("A100",))
    assert (fields["env"]["SEED"], fields["env"]["FAST"]) == ("3", "true")
    assert "MODEL" not in fields["env"]
    assert fields["env"]["SKYPILOT_NUM_GPUS_PER_NODE"] == "8"
    assert fields["cwd"] == str(tmp_path)
    assert len(draft.remarks) == 1


@pytest.mark.parametrize(
    ("accelerators", "number", "types"),
    [
        ("A100", 1, ("A100",)),
        ("A100:8", 8, ("A100",)),
        ("{A100: 8}", 8, ("A100",)),
        ("{A100: 1, V100: 1}", 1, ("A100", "V100")),
        ("['A100:2', 'H100:2']", 2, ("A100", "H100")),
        ("{A100: 2.0}", 2, ("A100",)),
    ],
)
def test_accelerators(tasks: Tasks, accelerators: str, number: int, types: tuple[str, ...]) -> None:
    fields = tasks.read(f"resources: {{accelerators: {accelerators}}}\nrun: x\n").fields
    assert (fields["gpus"], fields["gpu_types"]) == (number, types)


@pytest.mark.parametrize("field", ["file_mounts: {a: b}", "volumes: {/a: b}", "service: {replicas: 2}", "made_up: 1"])
def test_fields_that_make_another_job_of_it_are_refused(tasks: Tasks, field: str) -> None:
    with pytest.raises(InputError, match=f"task.yaml: {field.partition(':')[0]}: ") as caught:
        tasks.read(f"resources: {{accelerators: A100}}\nrun: x\n{field}\n")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "field",
    [
        "image_id: 'docker:nvcr.io/pytorch'",
        "image_id: {us: 'docker:x'}",
        "any_of: [{cloud: aws}]",
        "accelerator: A100:8",
    ],
)
def test_resources_that_make_another_job_of_it_are_refused(tasks: Tasks, field: str) -> None:
    with pytest.raises(InputError, match=f"task.yaml: resources.{field.partition(':')[0]}: "):
        tasks.read(f"resources: {{accelerators: A100, {field}}}\nrun: x\n")


@pytest.mark.parametrize("field", ["file_mounts: {}", "service:", "resources: {accelerators: A100, any_of: []}"])
def test_fields_that_ask_for_nothing_are_no_mistake(tasks: Tasks, field: str) -> None:
    assert tasks.read(f"run: x\n{field}\n").fields["gpus"] == 1


@pytest.mark.parametrize("field", ["cloud: aws", "use_spot: true", "disk_size: 50", "cpus: 8+", "image_id: x"])
def test_clouds_get_a_remark(tasks: Tasks, field: str) -> None:
    (remark,) = tasks.read(f"resources: {{accelerators: A100, {field}}}\nrun: x\n").remarks
    assert "clouds" in remark


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not one task"),
        ("[1, 2]", "not one task"),
        ("run: x\n---\nrun: y\n", "not one task"),
        ("a: [", "not YAML"),
        ("run: 'x", "not YAML"),
        ("run: \x07", "not YAML"),
        ("name: x", "nothing to `run`"),
        ("run: [a, b]", "lines of shell"),
        ("run: x\nnum_nodes: 0", "num_nodes"),
        ("run: x\nnum_nodes: two", "num_nodes"),
        ("run: x\nnum_nodes: true", "num_nodes"),
        ("run: x\nresources: many", "named fields"),
        ("run: x\nresources: {accelerators: 'A100:x'}", "accelerators"),
        ("run: x\nresources: {accelerators: {A100: 1, V100: 2}}", "same number"),
        ("run: x\nresources: {accelerators: {A100: 1.5}}", "no share of one GPU"),
        ("run: x\nresources: {accelerators: 'A100:-0.5'}", "no share of one GPU"),
        ("run: x\nresources: {accelerators: 'A100:nan'}", "no share of one GPU"),
        ("run: x\nnum_nodes: 2\nresources: {accelerators: 'A100:0.5'}", "for one node"),
        ("run: x\nresources: {accelerators: 4}", "A100:8"),
        ("run: x\nenvs: {TOKEN: null}", "--env TOKEN="),
        ("run: x\nenvs: {A: [1]}", "not a text"),
        ("run: x\nenvs: [A]", "named fields"),
        ("run: x\nworkdir: {url: y}", "local directory"),
        ("run: !!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_file(tasks: Tasks, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        tasks.read(text)
    assert str(caught.value).startswith(str(tasks.path))


def test_the_file_is_shown_and_not_the_wrapper(tasks: Tasks, tmp_path: Path) -> None:
    assert tasks.read("run: python train.py\n").fields["shown"].endswith(".yaml")


def test_setup_is_done_once_for_a_job_and_before_it_runs(tasks: Tasks, tmp_path: Path) -> None:
    draft = tasks.read("setup: echo 'set up' >> order\nrun: |\n  echo $SKYPILOT_NUM_NODES >> order\n  exit 3\n")
    env = {"PATH": os.environ["PATH"], "FAIRWAY_CHECKPOINT_DIR": str(tmp_path), **draft.fields["env"]}
    for _ in range(2):
        assert subprocess.run(draft.fields["command"], cwd=tmp_path, env=env, timeout=30, check=False).returncode == 3
    assert (tmp_path / "order").read_text() == "set up\n1\n1\n"


def test_a_setup_that_fails_ends_the_job(tasks: Tasks, tmp_path: Path) -> None:
    draft = tasks.read("setup: |\n  false\n  true\nrun: touch ran\n")
    env = {"PATH": os.environ["PATH"], "FAIRWAY_CHECKPOINT_DIR": str(tmp_path), **draft.fields["env"]}
    assert subprocess.run(draft.fields["command"], cwd=tmp_path, env=env, timeout=30, check=False).returncode == 1
    assert not (tmp_path / "ran").exists()
