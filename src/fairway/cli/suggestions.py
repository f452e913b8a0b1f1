"""What was probably meant by a command or option that does not exist.

A word that users of Slurm and other schedulers know gets the answer that fits its meaning. Any other word gets one
that is spelled alike, or none: a wrong suggestion is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from typer.core import TyperGroup

from fairway.core.errors import InputError

_ALIKE = 0.78
"""How alike two spellings have to be, from 0 to 1: `canecl` and `cancel` are, `stop` and `top` have a better answer."""

_CANCEL = "`fairway cancel JOB` ends a job"
_LIST = "`fairway ls` lists jobs"
_SUBMIT = "`fairway submit` submits a job"
_CPUS = "--cpus N limits a job; CPUs are not scheduled"
_NODES = "--gpus N asks for all GPUs of a job; on a cluster Fairway takes as few nodes as have them"
_LOGS = "what a job writes is kept; `fairway logs JOB` shows it"
_MEMORY = "--mem SIZE limits the memory of the machine that a job uses; --memory SIZE is what it needs on each GPU"

_COMMANDS = {
    "stop": f"{_CANCEL}, `fairway down` stops the scheduler",
    "start": f"`fairway up` starts the scheduler, {_SUBMIT}",
    **dict.fromkeys(("kill", "delete", "remove", "rm", "abort", "scancel", "qdel", "bkill"), _CANCEL),
    **dict.fromkeys(("squeue", "queue", "list", "jobs", "ps", "qstat", "bjobs"), _LIST),
    **dict.fromkeys(("sbatch", "qsub", "bsub", "exec", "launch", "add"), _SUBMIT),
    "srun": "`fairway run` submits a job and stays with it",
    **dict.fromkeys(("sinfo", "gpus", "gpu", "cluster", "pestat"), "`fairway nodes` shows machines and GPUs"),
    **dict.fromkeys(("sacct", "past"), "`fairway history` lists jobs that have ended"),
    **dict.fromkeys(
        ("scontrol", "describe", "inspect"), "`fairway show JOB` shows a job, `fairway update JOB` changes it"
    ),
    **dict.fromkeys(("sprio", "explain", "reason"), "`fairway why JOB` says why a job waits"),
    **dict.fromkeys(("sshare", "quota", "usage", "users"), "`fairway share` shows what each user has"),
    **dict.fromkeys(("watch", "monitor", "smap"), "`fairway top` shows the queue live"),
    **dict.fromkeys(("log", "tail", "output", "cat", "attach"), "`fairway logs JOB` shows what a job writes"),
    "pause": "`fairway suspend JOB` takes a job off its GPUs",
    **dict.fromkeys(("continue", "unpause"), "`fairway resume JOB` lets a suspended job go on"),
    **dict.fromkeys(("restart", "retry"), "`fairway requeue JOB` stops a job and lets it start again"),
    **dict.fromkeys(("serve", "server", "daemon"), "`fairway up` starts the scheduler"),
    **dict.fromkeys(("shutdown", "quit", "exit"), "`fairway down` stops the scheduler"),
    "config": "`fairway reload` reads the configuration again",
    "sim": "`fairway simulate` replays a trace",
    "version": "`fairway --version` shows it",
}

_OF_JOBS = {
    **dict.fromkeys(("--mem-per-gpu", "--mem-per-cpu", "--gpu-memory", "--ram"), _MEMORY),
    **dict.fromkeys(("--cpu", "--cpus-per-task", "--cpus-per-gpu", "--cores", "-c"), _CPUS),
    **dict.fromkeys(("--nodes", "--node", "--nnodes", "--hosts", "-N"), _NODES),
    **dict.fromkeys(("--ntasks", "--ntasks-per-node", "--nproc-per-node", "-n"), "--per-gpu starts a process per GPU"),
    **dict.fromkeys(("--gpu", "--gres", "--gpus-per-node", "--gpus-per-task", "-G"), "--gpus N"),
    **dict.fromkeys(("--constraint", "--gpu-type", "-C"), "--type TYPE names a GPU type"),
    **dict.fromkeys(("--partition", "-p"), "--queue NAME"),
    **dict.fromkeys(("--nice", "--qos"), "--priority N"),
    **dict.fromkeys(("--job-name", "-J"), "--name NAME"),
    **dict.fromkeys(("--time-limit", "--timeout", "--limit", "--walltime", "-t"), "--time T"),
    **dict.fromkeys(("--time-min", "--duration"), "--expect T says how long it will probably run"),
    **dict.fromkeys(("--dependency", "--after", "-d"), "--depends afterok:JOB"),
    **dict.fromkeys(("--output", "--error", "--log", "-o", "-e"), _LOGS),
    **dict.fromkeys(("--workdir", "--cwd", "--dir", "-D"), "--chdir DIR"),
    **dict.fromkeys(("--environment", "--environ", "-E"), "--env NAME=VALUE sets a variable, --export chooses yours"),
    **dict.fromkeys(("--requeue", "--retry", "--restart"), "--retries N"),
    **dict.fromkeys(("--exclusive", "--no-requeue", "--no-preempt"), "--preempt never keeps its GPUs from being taken"),
    "--account": "--queue NAME; limits are set per queue and user",
    "--wrap": "the command stands after --: fairway submit -- COMMAND",
}
_OF_SEVERAL = dict.fromkeys(("--all", "-a"), "name the jobs; `fairway ls` lists their ids")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("submit", "run", "what-if"), _OF_JOBS),
    **dict.fromkeys(("cancel", "suspend", "resume", "requeue", "hold", "release", "update"), _OF_SEVERAL),
    "ls": {"--me": "--user NAME", "--partition": "--queue NAME", "--states": "--status STATE"},
    "logs": {"--lines": "--tail N"},
}
"""What options of other programs are called here, by the command that they were given to."""


class KnowsOtherNames(TyperGroup):
    """A group of commands that answers an unknown one with what was probably meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_command(args[0], self.commands, ctx.command_path)
        return super().resolve_command(ctx, args)


def unknown_command(name: str, commands: Iterable[str], path: str) -> InputError:
    """What to say about a command that does not exist."""
    known = _COMMANDS.get(name.lower()) if path == "fairway" else None
    return InputError(f"no such command {name!r}{_hint(known, alike(name, commands))} (see {path} --help)")


def unknown_option(name: str, options: Iterable[str], command: str) -> str:
    """What to say about an option that a command does not have."""
    known = _OPTIONS.get(command, {}).get(name)
    return f"no such option: {name}{_hint(known, alike(name, options))}"


def _hint(known: str | None, close: str | None) -> str:
    if known is not None:
        return f"; {known}"
    return f"; did you mean {close}?" if close else ""


def alike(name: str, others: Iterable[str]) -> str | None:
    """The other name that is spelled most alike; None if none is close, or if it is a matter of single letters."""
    word = name.strip("-").lower()
    if len(word) < 3:
        return None
    rated: Sequence[tuple[float, str]] = [(_likeness(word, other.strip("-").lower()), other) for other in others]
    best = max(rated, default=(0.0, ""))
    return best[1] if best[0] >= _ALIKE else None


def _likeness(word: str, other: str) -> float:
    """How alike two words are; the beginning of a word is nearly that word."""
    if other.startswith(word):
        return 1.0 - 0.01 * (len(other) - len(word))
    return SequenceMatcher(None, word, other).ratio()
