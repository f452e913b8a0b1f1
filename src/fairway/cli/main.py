"""The `fairway` command: its subcommands, and the one place where an error becomes a line and an exit code.

Everything heavy is imported inside the commands, so that `fairway --help` stays quick.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, cast

import typer

from fairway import __version__
from fairway.cli.cluster import node, nodes, policy, share
from fairway.cli.compare import compare
from fairway.cli.demo import demo
from fairway.cli.eta import eta
from fairway.cli.help import help_
from fairway.cli.jobs import cancel, gc, history, hold, ls, release, requeue, resume, show, suspend, update
from fairway.cli.lab import lab
from fairway.cli.live import exit_code_of
from fairway.cli.logs import logs
from fairway.cli.operators import audit, token
from fairway.cli.policies import policies
from fairway.cli.profile import profile
from fairway.cli.report import report
from fairway.cli.reproduce import reproduce
from fairway.cli.salvage import salvage
from fairway.cli.simulate import simulate
from fairway.cli.slurm_script import slurm_script
from fairway.cli.snapshot import replay, snapshot
from fairway.cli.submit import TakesCommand, run, submit
from fairway.cli.submit_options import SchemaCommand
from fairway.cli.suggestions import KnowsOtherNames, unknown_option
from fairway.cli.top import top
from fairway.cli.trace import trace
from fairway.cli.up import down, reload, status, up
from fairway.cli.visible import visible
from fairway.cli.web import MayOmitAddress, web
from fairway.cli.why import what_if, why
from fairway.core.errors import FairwayError

OK, BUG, BAD_INPUT, INTERRUPTED, CLOSED_PIPE, TERMINATED = 0, 1, 2, 130, 141, 143

_WRONG_VALUES = {
    "int_parsing": "is not a whole number",
    "int_from_float": "is not a whole number",
    "int_parsing_size": "is too large",
    "float_parsing": "is not a number",
    "greater_than_equal": "is too small; it must be at least {ge:g}",
    "less_than_equal": "is too large; it must be at most {le:g}",
}
"""What is wrong with the value of an option, by the parser's kind of error."""
_PARSER_ERROR = cast(type[Exception], typer.BadParameter.__mro__[2])
"""The base of all errors of the option parser. Typer brings its own copy of Click or uses an installed one."""

_COMPLETING = "_FAIRWAY_COMPLETE"
"""The variable in which a shell asks for completions; see `fairway --show-completion`."""

app = typer.Typer(
    name="fairway",
    cls=KnowsOtherNames,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=MayOmitAddress)(up)
for command in (down, status, reload, web):
    app.command()(command)
for command in (submit, run):
    app.command(cls=TakesCommand)(command)
for command in (
    ls,
    show,
    logs,
    cancel,
    suspend,
    resume,
    requeue,
    hold,
    release,
    update,
    why,
    what_if,
    eta,
    top,
    nodes,
    share,
    history,
    gc,
    audit,
):
    app.command(cls=SchemaCommand)(command)
app.add_typer(policy, name="policy", cls=KnowsOtherNames)
app.add_typer(node, name="node", cls=KnowsOtherNames)
app.add_typer(token, name="token", cls=KnowsOtherNames)
app.add_typer(profile, name="profile", cls=KnowsOtherNames)
for command in (slurm_script, salvage, simulate, compare, policies, report, reproduce, demo):
    app.command()(command)
app.add_typer(trace, name="trace", cls=KnowsOtherNames)
app.add_typer(snapshot, name="snapshot", cls=KnowsOtherNames)
app.command()(replay)
app.add_typer(lab, name="lab", cls=KnowsOtherNames)
app.command("help")(help_)


@app.callback(invoke_without_command=True)
def fairway(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Fairway schedules deep-learning training on GPU clusters, simulated and real.

    \b
    First steps:
      fairway up                                      schedule on this machine
      fairway submit --gpus 1 -- python train.py      submit a job
      fairway demo                                    compare all policies
      fairway simulate jobs.csv --cluster v100:16x4 --policy srtf
                                                      replay a trace
      fairway compare jobs.csv --cluster v100:16x4 --html out.html
                                                      all policies, as a report
    """
    if version:
        typer.echo(f"fairway {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are one line on stderr."""
    _prepare_streams()
    try:
        with _ended_by_sigterm():
            _run(list(sys.argv[1:] if argv is None else argv))
            sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else BUG
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return INTERRUPTED
    except Exception as error:
        return _explain(error)
    return OK


def _run(argv: list[str]) -> None:
    root = typer.main.get_command(app)
    if os.environ.get(_COMPLETING):
        raise typer.Exit(_completed(root, os.environ[_COMPLETING]))
    with root.make_context("fairway", argv) as context:
        root.invoke(context)


def _completed(root: Any, instruction: str) -> int:
    """Print the completions of a command line that the shell passes in; the exit code."""
    from typer.completion import shell_complete

    return shell_complete(root, {}, "fairway", _COMPLETING, instruction)


def _explain(error: Exception) -> int:
    """Print what went wrong; the exit code."""
    if os.environ.get("FAIRWAY_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    if isinstance(error, FairwayError):
        _complain(f"error: {error}")
        return exit_code_of(error)
    if isinstance(error, _PARSER_ERROR):
        _complain(f"error: {_usage(error)}")
    elif isinstance(error, BrokenPipeError) and error.filename is None:
        _silence_stdout()
        return CLOSED_PIPE
    elif isinstance(error, OSError):
        _silence_stdout()
        _complain(f"error: {error.filename or 'standard output'}: {error.strerror or error}")
    elif isinstance(error, MemoryError):
        _complain("error: out of memory")
    else:
        what = f"{type(error).__name__}: {error}"
        _complain(f"error: this is a bug in Fairway, please report it: {what} (FAIRWAY_DEBUG=1 shows where)")
        return BUG
    return BAD_INPUT


def _usage(error: Any) -> str:
    """The parser's error in one line, with the option that was probably meant."""
    text = str(error.format_message()).strip().rstrip(".")
    context = getattr(error, "ctx", None)
    meant = getattr(error, "option_name", "")
    if context is None:
        return text[:1].lower() + text[1:]
    text = _wrong_value(error) or text
    if hasattr(error, "possibilities"):
        options = [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]
        text = unknown_option(meant, options, context.command.name or "")
    return f"{text[:1].lower()}{text[1:]} (see {context.command_path} --help)"


def _wrong_value(error: Any) -> str | None:
    """What is wrong with the value of an option, in our words; None if it is something else."""
    checked = getattr(error.__cause__, "errors", None)
    options = getattr(getattr(error, "param", None), "opts", None)
    if checked is None or not options:
        return None
    first = checked()[0]
    said = _WRONG_VALUES.get(first["type"])
    return said and f"{options[0]} {str(first['input'])[:60]!r} {said.format(**first.get('ctx', {}))}"


def _complain(text: str) -> None:
    """Print one line on stderr, with unprintable characters escaped."""
    line = visible(" ".join(text.split("\n")))
    with suppress(OSError, ValueError):
        print(f"fairway: {line}", file=sys.stderr, flush=True)


def _prepare_streams() -> None:
    """Output must not fail on a closed stream, or on a name that the terminal's encoding cannot show."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - lives as long as we do
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence_stdout() -> None:
    """After a failed write, drop the rest: Python would flush once more at exit and fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that no half-written file stays behind."""

    def end(*_: object) -> None:
        raise SystemExit(TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
