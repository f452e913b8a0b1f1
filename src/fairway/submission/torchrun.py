"""`torchrun --nnodes=1:4 --nproc-per-node=8 train.py` as a job whose ranks Fairway starts itself.

torchrun kills its workers 30 s after SIGTERM, whatever a job's grace period is, and waits for nodes on its own. The
scheduler does its work instead: one rank per GPU with the same environment. So only torchrun's options are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from fairway.core.errors import InputError
from fairway.submission.draft import Draft, gpu_fields, gpus_vary
from fairway.submission.quantities import Gpus, count_range

_WITH_VALUE = frozenset(
    (
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "monitor-interval",
        "start-method",
        "role",
        "log-dir",
        "redirects",
        "tee",
        "local-ranks-filter",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "logs-specs",
        "event-log-handler",
        "numa-binding",
        "signals-to-handle",
    )
)
_FLAGS = frozenset(
    (
        "standalone",
        "module",
        "no-python",
        "run-path",
        "use-env",
        "duplicate-stdout-filters",
        "duplicate-stderr-filters",
    )
)
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
_OURS = frozenset(
    (
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "master-addr",
        "master-port",
        "local-addr",
        "standalone",
        "monitor-interval",
    )
)
"""How ranks find one another: the scheduler sees to that, so nothing is lost by leaving it out."""
_LAUNCH = "torch.distributed.launch"
_MODULES = ("torch.distributed.run", _LAUNCH)


def is_torchrun(command: Sequence[str]) -> bool:
    """Whether a command starts its processes through torchrun, under one of its names."""
    return _words_before(command) > 0


def _words_before(command: Sequence[str]) -> int:
    """How many words name torchrun; 0 if it is something else."""
    if not command:
        return 0
    if PurePosixPath(command[0]).name == "torchrun":
        return 1
    python = PurePosixPath(command[0]).name.startswith("python")
    return 3 if python and len(command) > 2 and command[1] == "-m" and command[2] in _MODULES else 0


def from_torchrun(command: Sequence[str], asked: Mapping[str, Any]) -> Draft:
    """Read a torchrun command. `asked` are fields of the command line, which it must not contradict."""
    names = _words_before(command)
    options, script = _options(command[names:])
    if not script:
        raise InputError("torchrun: there is no script to run")
    if _LAUNCH in command[2:3] and names == 3 and "use-env" not in options:
        raise InputError(f"{_LAUNCH} adds --local-rank to the script's arguments, and Fairway does not. Use torchrun")
    remarks = _refuse_what_cannot_be(options)
    nodes = count_range(options.get("nnodes", "1"), what="torchrun --nnodes", separators=":")
    wanted = _wanted(options.get("nproc-per-node", "1"), nodes, asked)
    fields: dict[str, Any] = {"processes": "per_gpu", **gpu_fields(wanted)}
    if gpus_vary(asked) and fields["gpus"] != asked["gpus"]:
        fields["gpus"] = asked["gpus"]
    if nodes != (1, 1):
        told = f"{wanted.least} to {wanted.most}" if wanted.least < wanted.most else str(wanted.most)
        remarks.append(
            f"torchrun --nnodes={options['nnodes']}: the job gets {told} GPUs, on as few nodes as it finds them"
        )
    restarts = options.get("max-restarts")
    if restarts is not None:
        if not (restarts.isdecimal() and restarts.isascii() and len(restarts) < 10):
            raise InputError(f"torchrun --max-restarts {restarts!r} is not a number")
        fields["retries"] = int(restarts)
    fields["command"] = _command(command[:names], options, script)
    return Draft(fields, remarks=tuple(remarks))


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """torchrun's own options, and what follows them: the script and its arguments."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            return options, list(words[at:])
        if not word.startswith("-"):
            return options, list(words[at - 1 :])
        name, equals, value = word.partition("=")
        name = _SHORT.get(name) or name.removeprefix("--").replace("_", "-")
        if name in _FLAGS and not equals:
            options[name] = ""
        elif name in _WITH_VALUE:
            if not equals:
                if at == len(words):
                    raise InputError(f"torchrun {word}: its value is missing")
                value, at = words[at], at + 1
            options[name] = value
        else:
            raise InputError(f"torchrun {word}: this option is not known here, so the job cannot be mapped")
    return options, []


def _refuse_what_cannot_be(options: Mapping[str, str]) -> list[str]:
    """Errors for what the scheduler cannot do; remarks about what is left out."""
    if "run-path" in options:
        raise InputError("torchrun --run-path cannot be mapped; give the script itself")
    if options.get("rdzv-backend", "c10d") not in ("c10d", "static"):
        raise InputError(
            f"torchrun --rdzv-backend {options['rdzv-backend']!r} cannot be mapped: ranks meet at one port"
        )
    if options.get("node-rank", "0") != "0":
        raise InputError(
            f"torchrun --node-rank {options['node-rank']!r} cannot be mapped: the whole job is started here"
        )
    used = {"nnodes", "nproc-per-node", "max-restarts", "module", "no-python", "rdzv-backend", "node-rank", "use-env"}
    return [
        f"torchrun --{name} is left out: Fairway starts the ranks and keeps a log of each"
        for name in options
        if name not in used | _OURS
    ]


def _wanted(per_node: str, nodes: tuple[int, int], asked: Mapping[str, Any]) -> Gpus:
    """How many GPUs this needs, one per rank."""
    beside = Gpus(asked["gpus_min"], asked["gpus_max"], share=asked["gpu_share"]) if "gpus" in asked else None
    if per_node in ("gpu", "auto"):
        if beside is None:
            raise InputError(
                f"torchrun --nproc-per-node={per_node} means all GPUs of a machine; say how many with --gpus"
            )
        return beside
    if not (per_node.isdecimal() and per_node.isascii() and len(per_node) < 10 and int(per_node) >= 1):
        raise InputError(f"torchrun --nproc-per-node={per_node} cannot be mapped; give a number of GPUs")
    told = Gpus(int(per_node), int(per_node), share=1.0 if beside is None else beside.share).times(*nodes)
    if beside is not None and told != beside:
        has = f"{told.least}" if told.least == told.most else f"{told.least} to {told.most}"
        raise InputError(f"torchrun starts {has} processes, one per GPU, and --gpus says something else")
    return told


def _command(names: Sequence[str], options: Mapping[str, str], script: list[str]) -> tuple[str, ...]:
    """What each rank runs, with the Python that torchrun would have used."""
    if "no-python" in options:
        return tuple(script)
    path = PurePosixPath(names[0])
    python = str(path.parent / "python") if len(names) == 1 and "/" in names[0] else names[0]
    python = "python" if python == "torchrun" else python
    return (python, "-u", *(("-m",) if "module" in options else ()), *script)
