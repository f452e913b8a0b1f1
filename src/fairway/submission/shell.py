"""Scripts that are run by a shell, so that they can be asked to stop like any other job.

A shell that is asked to stop ends at once and passes on no exit code; the training below it would be killed while it
saves. So scripts are run by a shell that waits for its present command and ends with that command's code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from fairway.core.errors import InputError
from fairway.runtime.jobs.request import MOST_SHOWN
from fairway.runtime.processes.srun_options import FLAGS, STEPS, parsed

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


def _patterns(names: Iterable[str]) -> str:
    """The pattern of a shell's `case` for options, with a value after `=` or without."""
    return "|".join(f"--{name}" if name.endswith("*") else f"--{name}|--{name}=*" for name in names)


_SRUN = f"""\
_srun_task() {{
  local name
  if [ -n "$in" ]; then cd -- "$in" || exit 1; fi
  for name in out err; do
    local file=${{!name}}
    file=${{file//%t/$SLURM_PROCID}}; file=${{file//%j/$SLURM_JOB_ID}}; file=${{file//%x/$SLURM_JOB_NAME}}
    if [ -z "$file" ]; then continue; fi
    if [ $name = out ]; then exec >"$file"; [ -n "$err" ] || exec 2>&1; else exec 2>"$file"; fi
  done
  exec env "${{vars[@]}}" "$@"
}}
srun() {{
  local n= each= i c code=0 stopped= in= out= err= pair pids=() vars=()
  while [ $# -gt 0 ]; do
    case $1 in
      -n|--ntasks) n=$2; shift 2;;
      --ntasks=*) n=${{1#*=}}; shift;;
      -n[0-9]*) n=${{1#-n}}; shift;;
      --ntasks-per-node) each=$2; shift 2;;
      --ntasks-per-node=*) each=${{1#*=}}; shift;;
      -D|--chdir) in=$2; shift 2;;
      --chdir=*) in=${{1#*=}}; shift;;
      -D?*) in=${{1#-D}}; shift;;
      -o?*) out=${{1#-o}}; shift;;
      -e?*) err=${{1#-e}}; shift;;
      -o|--output) out=$2; shift 2;;
      --output=*) out=${{1#*=}}; shift;;
      -e|--error) err=$2; shift 2;;
      --error=*) err=${{1#*=}}; shift;;
      --export) set -- "--export=$2" "${{@:3}}";;
      --export=*)
        local IFS=,
        for pair in ${{1#*=}}; do case $pair in *=*) vars+=("$pair");; esac; done
        unset IFS; shift;;
      -N|--nodes|-w|--nodelist|-r|--relative) shift 2;;
      --nodes=*|--nodelist=*|--relative=*|-[Nwr]?*) shift;;
      -l|--label|-K*|--kill-on-bad-exit|--kill-on-bad-exit=*) shift;;
      --) shift; break;;
      {_patterns(STEPS.refused)}|-i*)
        echo "srun: error: $1: the tasks would not run as asked, so this is refused" >&2; return 1;;
      {"|".join(f"--{name}" for name in sorted(FLAGS & STEPS.left_out.keys()))}) shift;;
      --*=*|-[a-zA-Z]?*|-[ukQvXOsEZ]) shift;;
      -*) shift 2;;
      *) break;;
    esac
  done
  n=${{n:-${{each:-${{FAIRWAY_TASKS:-1}}}}}}
  export SLURM_NTASKS=$n SLURM_NPROCS=$n
  if [ "$n" -le 1 ]; then (export SLURM_PROCID=0 SLURM_LOCALID=0; _srun_task "$@"); return; fi
  trap 'stopped=1' TERM
  for ((i = 0; i < n; i++)); do
    (
      export SLURM_PROCID=$i SLURM_LOCALID=$i FAIRWAY_RANK=$i FAIRWAY_LOCAL_RANK=$i RANK=$i LOCAL_RANK=$i
      export FAIRWAY_WORLD_SIZE=$n WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n NODE_RANK=0 GROUP_RANK=0
      export MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}} MASTER_PORT=${{MASTER_PORT:-$FAIRWAY_TASKS_PORT}}
      _srun_task "$@"
    ) &
    pids+=($!)
  done
  for i in "${{pids[@]}}"; do
    while wait "$i"; c=$?; [ $c -gt 128 ] && kill -0 "$i" 2>/dev/null; do :; done
    if [ $c -ne 0 ]; then code=$c; fi
  done
  trap 'exit $?' TERM
  if [ -n "$stopped" ]; then exit $code; fi
  return $code
}}
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


_STEP = re.compile(r"^[ \t]*(?:exec[ \t]+|time[ \t]+)?srun[ \t]((?:\\\n|[^\n])*)", re.MULTILINE)


def refuse_steps(text: str, source: str) -> None:
    """Raise `InputError` if a line of a script calls `srun` with an option that it would refuse.

    The script may make up its options while it runs. Then `srun` refuses them itself.
    """
    for found in _STEP.finditer(text):
        try:
            words = shlex.split(found[1].replace("\\\n", " "), comments=True)
        except ValueError:
            # The quotes go on in the next line, behind the options.
            words = found[1].replace("\\\n", " ").split()
        for name in parsed(words)[0]:
            why = STEPS.explicit_refusal(name)
            if why is not None:
                line = text.count("\n", 0, found.start()) + 1
                raise InputError(f"srun --{name}: {why}", path=source, line=line)
