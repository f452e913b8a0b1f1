"""The options of `srun`: those that Fairway carries out, those that it refuses, and those that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.runtime.processes.foreign import ForeignNames

SHORT = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "E": "preserve-env",
    "F": "nodefile",
    "G": "gpus",
    "I": "immediate",
    "J": "job-name",
    "K": "kill-on-bad-exit",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "T": "threads",
    "W": "wait",
    "X": "disable-status",
    "Z": "no-allocate",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "i": "input",
    "k": "no-kill",
    "l": "label",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "r": "relative",
    "s": "oversubscribe",
    "t": "time",
    "u": "unbuffered",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}
FLAGS = frozenset(
    (
        *("label", "kill-on-bad-exit", "unbuffered", "no-kill", "quiet", "verbose", "disable-status", "overcommit"),
        *("oversubscribe", "preserve-env", "no-allocate", "exclusive", "overlap", "exact", "pty", "contiguous"),
        *("quit-on-interrupt", "multi-prog", "spread-job", "use-min-nodes", "test-only", "reboot", "interactive"),
        *("whole", "immediate", "resv-ports", "bcast", "send-libs", "stepmgr"),
    )
)
"""Options that need no value. Those that may have one have it after `=`."""
TAKEN = frozenset(
    (
        *("ntasks", "nodes", "ntasks-per-node", "nodelist", "relative", "label", "kill-on-bad-exit"),
        *("chdir", "output", "error", "export"),
    )
)
_WHOLE = "the job's GPUs, CPUs and memory are for all its steps"
_CORES = "Fairway does not bind processes to cores or memory banks"
_SUBMISSION = "it is an option of submission; a step has that of its job"
_NO_PROGRAM = "Fairway starts no other programs around tasks. Put it into the script"
STEPS = ForeignNames(
    refused={
        "container*": "Fairway starts tasks in no container. Call `apptainer exec` in the script",
        "no-container*": "Fairway starts tasks in no container. Take it out",
        "uid": "tasks run as the owner of the job. Take it out",
        "gid": "tasks run with the groups of the owner. Take it out",
        "chroot": "Fairway does not change the root directory. Call `chroot` in the script",
        "multi-prog": "Fairway starts one command as all tasks. Choose by $SLURM_PROCID in a script",
        "het-group": "Fairway runs no jobs of several components. Take it out",
        "pack-group": "Fairway runs no jobs of several components. Take it out",
        "input": "tasks read nothing from standard input. Use `bash -c 'COMMAND < FILE'`",
        "bb": "Fairway stages no data. Copy it in the script",
        "bbf": "Fairway stages no data. Copy it in the script",
        "ntasks-per-gpu": "Fairway does not read it. Use --ntasks",
        "ntasks-per-socket": "Fairway does not count sockets. Use --ntasks",
        "test-only": "the step would run. Take it out",
        **dict.fromkeys(("prolog", "epilog", "task-prolog", "task-epilog"), _NO_PROGRAM),
    },
    left_out={
        **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "gres-flags"), _WHOLE),
        **dict.fromkeys(("cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu", "mincpus"), _WHOLE),
        **dict.fromkeys(("exclusive", "overlap", "exact", "whole", "oversubscribe", "overcommit", "tmp"), _WHOLE),
        **dict.fromkeys(("tres-per-task", "licenses", "exclude", "nodefile", "contiguous", "switches"), _WHOLE),
        **dict.fromkeys(("spread-job", "use-min-nodes", "resv-ports", "jobid", "job-name", "time"), _WHOLE),
        **dict.fromkeys(("mpi", "network", "treewidth", "threads", "msg-timeout", "immediate", "stepmgr"), ""),
        **dict.fromkeys(("cpu-bind", "mem-bind", "gpu-bind", "tres-bind", "hint", "distribution"), _CORES),
        **dict.fromkeys(("core-spec", "thread-spec", "cores-per-socket", "sockets-per-node"), _CORES),
        **dict.fromkeys(("threads-per-core", "ntasks-per-core", "extra-node-info", "cpu-freq", "gpu-freq"), _CORES),
        **dict.fromkeys(("account", "partition", "qos", "reservation", "clusters", "constraint"), _SUBMISSION),
        **dict.fromkeys(("dependency", "comment", "wckey", "nice", "priority", "mail-type"), _SUBMISSION),
        **dict.fromkeys(("mail-user", "deadline", "time-min", "signal", "propagate", "prefer", "extra"), _SUBMISSION),
        **dict.fromkeys(("profile", "acctg-freq", "mcs-label", "cluster-constraint", "delay-boot"), _SUBMISSION),
        **dict.fromkeys(("unbuffered", "no-kill", "quiet", "verbose", "disable-status", "preserve-env"), ""),
        **dict.fromkeys(("no-allocate", "pty", "quit-on-interrupt", "reboot", "interactive", "wait"), ""),
        **dict.fromkeys(("bcast", "send-libs", "open-mode", "x11", "slurmd-debug", "oom-kill-step"), ""),
    },
)


def parsed(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The options of `srun` by their long names, and the command. An option that is a flag has the value ""."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        else:
            name, value = SHORT.get(word[1:2], word[1:2]), word[2:].removeprefix("=")
            equals = value
            if name in FLAGS and not set(value) - SHORT.keys():
                # Flags that are written together, such as -lu.
                options |= {SHORT[letter]: "" for letter in value}
                value = ""
        if not equals and name not in FLAGS and rest:
            value = rest.pop(0)
        options[name] = value
    return options, rest


def refusal(name: str) -> str | None:
    """Why an option is refused; None if it is carried out or left out."""
    return None if name in TAKEN else STEPS.refusal(name, TAKEN)
