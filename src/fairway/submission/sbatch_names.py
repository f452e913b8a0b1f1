"""The options of sbatch that do not become terms of a job: which are refused, and which are left out."""

from __future__ import annotations

from fairway.runtime.processes.foreign import ForeignNames

_SITE = "it concerns another site"
_PLACE = "Fairway chooses the machines"
_CORES = "Fairway does not bind processes to cores or memory banks"
_SAVER = "it does not concern what runs"

SBATCH = ForeignNames(
    refused={
        "container*": "Fairway starts jobs in no container. Call `apptainer exec` or `docker run` in the script",
        "no-container*": "Fairway starts jobs in no container. Take it out",
        "uid": "a job runs as whoever submits it; operators name another user with `fairway submit --user`",
        "gid": "a job runs with the groups of its owner. Take it out, or use `sg` in the script",
        "chroot": "Fairway does not change the root directory of a job. Call `chroot` in the script",
        "wrap": "a script has its own commands. Put this one into the script, or after `fairway submit --`",
        "input": "jobs read nothing from standard input. Write `COMMAND < FILE` in the script",
        "licenses": "Fairway does not count licences. Limit such jobs by a queue with `max_running`",
        "bb": "Fairway stages no data. Copy it in the script",
        "bbf": "Fairway stages no data. Copy it in the script",
        "export-file": "Fairway reads no file of variables. Use --export=NAMES, or `. FILE` in the script",
        "gpus-per-socket": "Fairway does not count sockets. Use --gpus-per-node",
        "sockets-per-node": "Fairway does not count sockets. Use --gpus-per-node",
        "tres-per-task": "Fairway does not read it. Use --gpus-per-task and --cpus-per-task",
        "test-only": "the job would run. `fairway what-if` says when it would start",
        "het-group": "Fairway runs no jobs of several components. Submit each one as a job",
    },
    left_out={
        **dict.fromkeys(("account", "wckey", "comment", "mcs-label", "admin-comment", "extra", "power"), _SITE),
        **dict.fromkeys(("reservation", "clusters", "bcast", "acctg-freq", "profile"), _SITE),
        **dict.fromkeys(("cluster-constraint", "batch", "prefer", "gres-flags", "network", "resv-ports"), _SITE),
        "partition": "Slurm's partitions are queues here; --queue NAME names one",
        "qos": "--queue NAME and --priority N say how soon a job is served",
        "nice": "--priority N says how soon a job is served",
        "priority": "--priority N of `fairway submit` says how soon a job is served",
        "deadline": "--deadline T of `fairway submit` tells the policy",
        "time-min": "the job keeps its whole time limit",
        "mail-type": "Fairway sends no mail",
        "mail-user": "Fairway sends no mail",
        **dict.fromkeys(("nodelist", "exclude", "nodefile", "contiguous", "switches", "spread-job"), _PLACE),
        **dict.fromkeys(("use-min-nodes", "segment", "consolidate-segments", "stepmgr"), _PLACE),
        "exclusive": "other jobs may run on the rest of the machine; the job's own GPUs are its own",
        "oversubscribe": "--gpus 0.5 of `fairway submit` asks for a share of a GPU",
        "overcommit": _CORES,
        **dict.fromkeys(("distribution", "cpu-bind", "mem-bind", "gpu-bind", "tres-bind", "hint"), _CORES),
        **dict.fromkeys(("core-spec", "thread-spec", "cores-per-socket", "extra-node-info"), _CORES),
        **dict.fromkeys(("threads-per-core", "ntasks-per-core", "ntasks-per-socket", "mincpus"), _CORES),
        **dict.fromkeys(("cpu-freq", "gpu-freq"), "Fairway does not set clocks"),
        "tmp": "Fairway does not count space on disks",
        "error": "it goes to the log of the job, with what is written on standard output",
        "open-mode": "each start of a job has a log of its own",
        "get-user-env": "the job gets variables of your shell, as --export says",
        "propagate": "a job has the limits of the scheduler",
        "no-kill": "a job that loses a node is started again",
        "wait": "`fairway run` waits for a job",
        **dict.fromkeys(("parsable", "quiet", "verbose", "ignore-pbs", "wait-all-nodes", "delay-boot"), _SAVER),
        **dict.fromkeys(("reboot", "kill-on-invalid-dep"), _SAVER),
    },
)
