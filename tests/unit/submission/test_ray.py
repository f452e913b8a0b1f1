"""RayJob files: what is taken over, what is remarked upon, what is refused. SkyPilot files ask for shares as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairway.core.errors import InputError
from fairway.submission.draft import Draft
from fairway.submission.skypilot import from_task_file

RAY = """
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: tune
spec:
  entrypoint: python tune.py
  entrypointNumGpus: {gpus}
  entrypointNumCpus: 2
  backoffLimit: 3
  runtimeEnvYAML: |
    env_vars:
      LR: 0.1
    working_dir: {folder}
  rayClusterSpec: {{}}
"""


def read(folder: Path, text: str) -> Draft:
    path = folder / "job.yaml"
    path.write_text(text)
    return from_task_file(path, (), {})


def request(draft: Draft) -> Any:
    return draft.request({})


def test_a_usual_job(tmp_path: Path) -> None:
    draft = read(tmp_path, RAY.format(gpus=2, folder=tmp_path))
    asked = request(draft)
    assert (asked.name, asked.gpus, asked.gpu_share, asked.cpus, asked.retries) == ("tune", 2, 1.0, 2.0, 3)
    assert (asked.env["LR"], asked.cwd) == ("0.1", str(tmp_path))
    assert "python tune.py" in " ".join(asked.command)
    assert [text for text in draft.remarks if "rayClusterSpec" in text]


def test_a_fraction_is_a_share_of_one_gpu(tmp_path: Path) -> None:
    asked = request(read(tmp_path, RAY.format(gpus=0.25, folder=tmp_path)))
    assert (asked.gpus, asked.gpu_share, asked.gpus_text) == (1, 0.25, "0.25")


@pytest.mark.parametrize("gpus", ["0", "1.5", "-0.5", ".nan", "two", "true"])
def test_wrong_numbers_of_gpus_are_refused(tmp_path: Path, gpus: str) -> None:
    with pytest.raises(InputError, match="entrypointNumGpus"):
        read(tmp_path, RAY.format(gpus=gpus, folder=tmp_path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: RayJob\nspec: x", "named fields"),
        ("kind: RayJob\nspec: {}", "nothing to run"),
        ("kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: '[a'}", "not YAML"),
        ("kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: 'env_vars: [a]'}", "named fields"),
        ("kind: RayJob\nspec: {entrypoint: x, entrypointNumCpus: many}", "entrypointNumCpus"),
        ("kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: 'pip: [torch]'}", "pip: Fairway installs nothing"),
        ("kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: 'image_uri: a/b'}", "no container"),
        ("kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: 'working_dir: s3://a/b.zip'}", "working_dir s3"),
        ("kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: '1: 2'}", "1: no such option"),
        ("kind: RayJob\nspec: {entrypoint: x, entryPointNumGpus: 4}", "did you mean entrypointNumGpus"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "job.yaml"))


CLUSTER = """
kind: RayJob
spec:
  entrypoint: x
  activeDeadlineSeconds: 600
  suspend: true
  rayClusterSpec:
    headGroupSpec:
      template: {{spec: {{containers: [{{name: head, image: {image}}}]}}}}
"""


def test_an_image_of_its_own_is_refused_and_a_stock_image_is_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"image registry/me/train:3: Fairway starts jobs in no container"):
        read(tmp_path, CLUSTER.format(image="registry/me/train:3"))
    asked = request(read(tmp_path, CLUSTER.format(image="rayproject/ray-ml:2.9.0-gpu")))
    assert (asked.limit_s, asked.hold) == (600.0, True)


@pytest.mark.parametrize("accelerators", ["V100:0.5", "{V100: 0.5}", "['V100:0.5', 'A100:0.5']"])
def test_a_skypilot_task_may_ask_for_a_share(tmp_path: Path, accelerators: str) -> None:
    asked = request(read(tmp_path, f"run: x\nresources:\n  accelerators: {accelerators}\n"))
    assert (asked.gpus, asked.gpu_share, asked.gpu_types[0]) == (1, 0.5, "V100")
