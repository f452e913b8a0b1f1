"""`fairway lab skew`: the tensor sizes of a model, and whether its gang must sit together."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairway.core.errors import InputError

if TYPE_CHECKING:
    from fairway.models.tensors import TensorProfile

SHOWN_TENSORS = 5
SERVERS = (2, 4, 8, 16)


def skew(
    target: Annotated[
        str | None,
        typer.Argument(help="A known model, package.module:factory or file.py:factory", metavar="[TARGET]"),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", help="Above this skew a gang is kept together. Default: 0.25", metavar="X"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")] = False,
) -> None:
    """Show the skew of a model, or list the known models.

    The skew is the largest tensor's share of the whole. `--placement skew` keeps gangs above the threshold together.

    \b
    fairway lab skew vgg16
    fairway lab skew train.py:make_model
    fairway lab skew torchvision.models:resnet50 --json
    """
    import json as writer

    from fairway.cli import output
    from fairway.models.tensors import SKEW_LIMIT, known_models, known_tensors

    limit = SKEW_LIMIT if threshold is None else threshold
    if not 0 <= limit <= 1:
        raise InputError(f"--threshold must be from 0 to 1, not {limit}")
    if target is None:
        listed = [_figures(name, tensors, limit) for name in known_models() if (tensors := known_tensors(name))]
        shown = writer.dumps(listed, indent=1) if json else None
        table = output.pairs_table((figures["model"], _line(figures)) for figures in listed)
    else:
        figures = _figures(target, _tensors_of(target), limit)
        shown = writer.dumps(figures, indent=1) if json else None
        table = output.pairs_table(_rows(figures))
    if shown is None:
        output.show(table)
    else:
        typer.echo(shown)


def _figures(model: str, tensors: TensorProfile, limit: float) -> dict[str, Any]:
    """What is printed, under the names of the JSON document."""
    return {
        "model": model,
        "tensors": len(tensors.tensors),
        "total_bytes": tensors.total_bytes,
        "largest": [{"name": name, "bytes": size} for name, size in tensors.largest(SHOWN_TENSORS)],
        "skew": tensors.skew,
        "imbalance": {str(servers): tensors.imbalance(servers) for servers in SERVERS},
        "threshold": limit,
        "consolidate": tensors.skew > limit,
    }


def _rows(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model", figures["model"]
    yield "size", f"{_mib(figures['total_bytes'])} in {figures['tensors']:,} tensors"
    for number, tensor in enumerate(figures["largest"]):
        share = tensor["bytes"] / figures["total_bytes"]
        yield "" if number else "largest", f"{_mib(tensor['bytes'])} ({100 * share:.1f} %)  {tensor['name']}"
    yield "skew", f"{figures['skew']:.3f} (threshold {figures['threshold']:g})"
    loads = " · ".join(f"{load:.2f} of {servers}" for servers, load in figures["imbalance"].items())
    yield "busiest server", f"{loads}  (its load over the mean)"
    yield "verdict", _verdict(figures)


def _line(figures: dict[str, Any]) -> str:
    largest = _mib(figures["largest"][0]["bytes"])
    return f"skew {figures['skew']:.3f} · {_mib(figures['total_bytes'])}, largest {largest} · {_verdict(figures)}"


def _verdict(figures: dict[str, Any]) -> str:
    return "keep the gang together" if figures["consolidate"] else "any free GPUs will do"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _tensors_of(target: str) -> TensorProfile:
    """The tensors of a known model, or of what a factory makes."""
    from fairway.models.tensors import known_models, known_tensors, tensor_profile

    where, colon, name = target.rpartition(":")
    if not colon:
        known = known_tensors(target)
        if known is None:
            names = ", ".join(known_models())
            raise InputError(
                f"unknown model {target!r}; known: {names}; or give package.module:factory or file.py:factory"
            )
        return known
    if not where or not name:
        raise InputError(f"{target!r} is not a model, package.module:factory or file.py:factory")
    with _users_code(target):
        return tensor_profile(_made(where, name))


def _made(where: str, name: str) -> Any:
    """What the factory returns; an object that lists its parameters itself is taken as it is."""
    module = _loaded_file(where) if where.endswith(".py") else importlib.import_module(where)
    if not hasattr(module, name):
        raise InputError(f"there is no {name!r} in it")
    factory = getattr(module, name)
    if not isinstance(factory, type) and hasattr(factory, "parameters"):
        return factory
    if not callable(factory):
        raise InputError(f"{name!r} is a {type(factory).__name__}, not something to call")
    return factory()


def _loaded_file(path: str) -> Any:
    if not Path(path).is_file():
        raise InputError("no such file")
    name = f"fairway_model_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError("this is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _users_code(target: str) -> Iterator[None]:
    """Run code of the user's: modules of the current directory are found, as with `python -m`; what it prints goes to
    stderr, since stdout may hold JSON; what it raises becomes one line."""
    sys.path.insert(0, "")
    try:
        with redirect_stdout(sys.stderr):
            yield
    except InputError as error:
        raise InputError(f"{target}: {error}") from None
    except SystemExit:
        raise InputError(f"{target}: it ends the program") from None
    except MemoryError:
        raise
    except Exception as error:
        raise InputError(f"{target}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
