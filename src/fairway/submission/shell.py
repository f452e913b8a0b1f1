"""Scripts that are run by a shell, so that they can be asked to stop like any other job.

A shell that is asked to stop ends at once and passes on no exit code; the training below it would be killed while it
saves. So scripts are run by a shell that waits for its present command and ends with that command's code.
"""

from __future__ import annotations

import shlex

from fairway.runtime.jobs.request import MOST_SHOWN

STOPPABLE = "trap 'exit $?' TERM\n"
"""When the present command has ended, end with its code: 75 says that it has saved its state."""

_LINKED = """\
if [ -n "$FAIRWAY_OUTPUT" ]; then
  o=$FAIRWAY_OUTPUT
  o=${o//%A/${FAIRWAY_JOB_ID%%_*}}; o=${o//%a/$FAIRWAY_ARRAY_TASK_ID}; o=${o//%j/$FAIRWAY_JOB_ID}
  o=${o//%x/$FAIRWAY_JOB_NAME}; o=${o//%u/$USER}; o=${o//%N/$(hostname)}; o=${o//%[nts]/0}
  if [ -L "$o" ] || [ ! -e "$o" ]; then ln -sfn -- "$FAIRWAY_LOG" "$o"; fi
fi
"""
"""Make the file in which users look for the output of their job a link to its log."""

_SRUN = """\
srun() {
  local n=${FAIRWAY_TASKS:-1} i c code=0 stopped= pids=()
  while [ $# -gt 0 ]; do
    case $1 in
      -n|--ntasks) n=$2; shift 2;;
      --ntasks=*) n=${1#*=}; shift;;
      -n[0-9]*) n=${1#-n}; shift;;
      --) shift; break;;
      --*=*|-[a-zA-Z]?*) shift;;
      --label|--unbuffered|--exclusive|--overlap|--pty|--no-kill|--kill-on-bad-exit|--quiet|--verbose) shift;;
      -l|-u|-k|-K|-Q|-v|-X|-O|-s) shift;;
      -*) shift 2;;
      *) break;;
    esac
  done
  export SLURM_NTASKS=$n SLURM_NPROCS=$n
  if [ "$n" -le 1 ]; then SLURM_PROCID=0 SLURM_LOCALID=0 "$@"; return; fi
  trap 'stopped=1' TERM
  for ((i = 0; i < n; i++)); do
    SLURM_PROCID=$i SLURM_LOCALID=$i FAIRWAY_RANK=$i FAIRWAY_LOCAL_RANK=$i RANK=$i LOCAL_RANK=$i \\
      FAIRWAY_WORLD_SIZE=$n WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n NODE_RANK=0 GROUP_RANK=0 \\
      MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-$FAIRWAY_TASKS_PORT} "$@" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do
    while wait "$i"; c=$?; [ $c -gt 128 ] && kill -0 "$i" 2>/dev/null; do :; done
    if [ $c -ne 0 ]; then code=$c; fi
  done
  trap 'exit $?' TERM
  if [ -n "$stopped" ]; then exit $code; fi
  return $code
}
"""
"""What `srun` does in a batch script: start the tasks, which are ranks if there are several of them."""


_SCONTROL = """\
scontrol() {
  case "$1 $2" in
    "show hostnames"|"show hostname") printf '%s\\n' "${3:-$SLURM_JOB_NODELIST}";;
    *) echo "scontrol $*: there is no Slurm here; an exit with code 75 asks to be run again" >&2; return 1;;
  esac
}
"""
"""Scripts ask for the names of their nodes, to tell all ranks where the first one listens."""

_PREPARED = f"""\
{_LINKED}if [ "${{FAIRWAY_NODES:-1}}" = 1 ]; then
{_SRUN}{_SCONTROL}fi
{STOPPABLE}"""
"""Over several nodes, `srun` and `scontrol` are programs that the scheduler provides."""


def typed(*words: str) -> str:
    """What the user wrote to submit a script: lists show this, not the command around it."""
    return shlex.join(words)[:MOST_SHOWN]


def run_script(path: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A command that runs an sbatch script."""
    return ("bash", "-c", _PREPARED + '. "$0"\n', path, *arguments)


def run_script_text(text: str, name: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A command that runs an sbatch script which is not a file."""
    return ("bash", "-c", _PREPARED + text, name, *arguments)


def run_text(text: str, name: str) -> tuple[str, ...]:
    """A command that runs lines of shell."""
    return ("bash", "-c", STOPPABLE + text, name)
