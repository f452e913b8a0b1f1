"""SkyPilot task files: what they say about a job is used, what they say about clouds is not.

`run` is executed once on each node, with all GPUs that the job has there; `setup` before it, once per job and node.
What would make another job of it, such as a container, is refused; fields of clouds get a remark (`yaml_names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import MOST_GPUS
from fairway.submission.draft import Draft, Folder, gpu_fields, local_folder
from fairway.submission.quantities import LEAST_SHARE, Gpus
from fairway.submission.ray import from_ray, is_ray
from fairway.submission.shell import run_text, typed
from fairway.submission.yaml_names import RESOURCES, TASKS, left_out
from fairway.submission.yaml_text import yaml_documents

_TAKEN = frozenset(("name", "num_nodes", "resources", "envs", "secrets", "workdir", "setup", "run"))
_SETUP = """\
done=$FAIRWAY_CHECKPOINT_DIR/.setup-done-$(uname -n)
if [ ! -e "$done" ]; then
  bash -ec "$FAIRWAY_SETUP" || exit $?
  touch "$done"
fi
"""
"""The setup runs once for a job on each node, not at each of its starts."""


def from_task_file(path: Path, arguments: Sequence[str], env: Mapping[str, str]) -> Draft:
    """Read a SkyPilot task or a RayJob. `env` has the variables of the command line, which a task may require."""
    if arguments:
        raise InputError("a task file takes no arguments; give variables with --env", path=str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"this is not YAML: {error}", path=str(path)) from None
    return _drafted(path, _loaded(text, path), env, local_folder)


def from_task_text(text: str, env: Mapping[str, str], *, source: str, folder: Folder) -> Draft:
    """Read a SkyPilot task or a RayJob that is no file and that somebody else wrote. Nothing is looked up."""
    path = Path(source)
    return _drafted(path, _loaded(text, path, aliases=False), env, folder)


def _drafted(path: Path, task: Mapping[str, Any], env: Mapping[str, str], folder: Folder) -> Draft:
    return from_ray(path, task, folder) if is_ray(task) else _from_skypilot(path, task, env, folder)


def _from_skypilot(path: Path, task: Mapping[str, Any], env: Mapping[str, str], folder: Folder) -> Draft:
    remarks = left_out(task, TASKS, _TAKEN, path)
    run = _text(task, "run", path)
    if not run:
        raise InputError("there is nothing to `run`", path=str(path))
    nodes = _whole(task.get("num_nodes", 1), "num_nodes", path)
    each, more = _accelerators(task.get("resources"), path)
    remarks += more
    total = Gpus(each.least * nodes, each.most * nodes, share=each.share)
    if each.share < 1 and nodes > 1:
        raise InputError(f"resources.accelerators: a share of a GPU is for one node, not {nodes}", path=str(path))
    if nodes > 1:
        remarks.append(f"{path}: the job gets {total.least} GPUs, on as few nodes as it finds them")
    fields: dict[str, Any] = {**gpu_fields(total)}
    if each.type:
        fields["gpu_types"] = tuple(each.type.split("|"))
    if task.get("name") is not None:
        fields["name"] = str(task["name"])
    fields["env"] = {**_variables(task, path, env), **_node_variables(total.least)}
    where = task.get("workdir")
    if where is not None:
        if not isinstance(where, str):
            raise InputError("workdir: only a local directory can be used", path=str(path))
        fields["cwd"] = _whole_name(where, folder, path)
    setup = _text(task, "setup", path)
    if setup:
        fields["env"]["FAIRWAY_SETUP"] = setup
    fields["command"] = run_text((_SETUP if setup else "") + run, path.name)
    fields["shown"] = typed(str(path))
    return Draft(fields, remarks=tuple(remarks))


def _whole_name(text: str, folder: Folder, path: Path) -> str:
    try:
        return folder(text)
    except InputError as error:
        raise InputError(f"workdir: {error.message}", path=str(path)) from None


def _loaded(text: str, path: Path, *, aliases: bool = True) -> dict[str, Any]:
    documents = yaml_documents(text, path, aliases=aliases)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise InputError("this is not one task with named fields", path=str(path))
    return {str(name): value for name, value in documents[0].items()}


def _text(task: Mapping[str, Any], name: str, path: Path) -> str:
    value = task.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{name} must be lines of shell", path=str(path))
    return value if value.endswith("\n") else f"{value}\n"


def _whole(value: Any, name: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
        raise InputError(f"{name}: {str(value)[:60]!r} is not a number from 1 to {MOST_GPUS}", path=str(path))
    return value


def _accelerators(resources: Any, path: Path) -> tuple[Gpus, list[str]]:
    """GPUs per node, several types separated by |, and remarks."""
    if resources is None:
        resources = {}
    if not isinstance(resources, dict):
        raise InputError("resources must have named fields", path=str(path))
    image = resources.get("image_id")
    for name in [str(one) for one in (image.values() if isinstance(image, dict) else [image])]:
        if name.startswith("docker:"):
            wish = "Call `docker run` in `run`, or take it out to run without"
            raise InputError(f"resources.image_id: Fairway starts jobs in no container. {wish}", path=str(path))
    remarks = left_out(resources, RESOURCES, ("accelerators",), path, "resources.")
    asked = resources.get("accelerators")
    if asked is None:
        return Gpus(1, 1), [*remarks, f"{path}: no accelerators are asked for; the job gets 1 GPU"]
    if isinstance(asked, dict):
        pairs = [(str(name), 1 if count is None else count) for name, count in asked.items()]
    else:
        pairs = [_pair(one, path) for one in (asked if isinstance(asked, list) else [asked])]
    if any(isinstance(count, list | dict) for _, count in pairs):
        raise InputError("resources.accelerators is not written like A100:8", path=str(path))
    counts = {_exact(count) for _, count in pairs}
    if len(counts) != 1:
        raise InputError("resources.accelerators: there must be the same number of each type", path=str(path))
    number, types = counts.pop(), "|".join(name for name, _ in pairs)
    if isinstance(number, float):
        if not LEAST_SHARE <= number < 1:
            raise InputError(f"resources.accelerators: {number:g} is no share of one GPU", path=str(path))
        return Gpus(1, 1, types, number), remarks
    whole = _whole(number, "resources.accelerators", path)
    return Gpus(whole, whole, types), remarks


def _pair(text: Any, path: Path) -> tuple[str, Any]:
    """`A100:8`, `A100:0.5` or `A100`."""
    if not isinstance(text, str) or not text:
        raise InputError(f"resources.accelerators: {text!r} is not written like A100:8", path=str(path))
    name, colon, count = text.partition(":")
    number: Any = count
    with suppress(ValueError):
        number = int(count) if count.isdigit() else float(count)
    return name, number if colon else 1


def _exact(count: Any) -> Any:
    """A count that is whole, written as 1 or 1.0."""
    return int(count) if isinstance(count, float) and count.is_integer() else count


def _variables(task: Mapping[str, Any], path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Variables of the task; one without a value must come from the command line."""
    found: dict[str, str] = {}
    for section in ("envs", "secrets"):
        named = task.get(section) or {}
        if not isinstance(named, dict):
            raise InputError(f"{section} must have named fields", path=str(path))
        for name, value in named.items():
            if value is None and str(name) not in given:
                raise InputError(f"{section}.{name} has no value; give it with --env {name}=…", path=str(path))
            if isinstance(value, dict | list):
                raise InputError(f"{section}.{name} is not a text", path=str(path))
            if value is not None:
                found[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _node_variables(gpus: int) -> dict[str, str]:
    return {
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_NODES": "1",
        "SKYPILOT_NODE_IPS": "127.0.0.1",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus),
    }
