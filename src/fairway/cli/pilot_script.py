"""The pilot: the sbatch script that `fairway slurm-script` prints. A job of Slurm, inside which Fairway schedules.

Slurm starts the script on the first node of the allocation. There it supervises two things: a step with one task per
node, each of which keeps this node's part of Ray running, and the scheduler. Jobs run below neither of them, so each
can be started again while jobs go on. What has to survive the allocation is on the shared directory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from fairway.core.errors import InputError


class Pilot(NamedTuple):
    """What the script is about. `directives` are options of sbatch, `up` is the rest of the line of `fairway up`."""

    directives: Sequence[Sequence[str]]
    jobs: str
    state: str
    python: str
    up: Sequence[str]
    again: bool


def script(pilot: Pilot) -> str:
    """The text of the script."""
    values = {
        "jobs": _shell(pilot.jobs),
        "state": _shell(pilot.state),
        "python": _shell(pilot.python),
        "up": f"({' '.join(_shell(word) for word in pilot.up)})",
        "again": "yes" if pilot.again else "no",
    }
    head = "".join(f"#SBATCH {' '.join(_sbatch(word) for word in words)}\n" for words in pilot.directives)
    told = "".join(f"{name}={value}{_ABOUT.get(name, '')}\n" for name, value in values.items())
    return f"{_TITLE}{head}\n{told}{_BODY}"


def _shell(word: str) -> str:
    return shlex.quote(_plain(word))


def _sbatch(word: str) -> str:
    """A word as sbatch reads it in a line of a script."""
    if re.fullmatch(r"[\w@%+=:,./\[\]{}*-]+", _plain(word), flags=re.ASCII):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(word: str) -> str:
    if not word or any(not character.isprintable() for character in word):
        raise InputError(f"{word!r} cannot be written in a script")
    return word


_ABOUT = {
    "jobs": "  # shared by all nodes: the folders of jobs, and what one pilot leaves to the next",
    "state": "  # on a local disk of the first node, below this directory",
    "up": "  # options of `fairway up`",
    "again": "  # whether to submit the next pilot if jobs are left at the time limit",
}
_TITLE = """\
#!/bin/bash
# A pilot: an allocation of Slurm inside which Fairway schedules, over all its nodes. Made by `fairway slurm-script`.
# To start it: sbatch THIS_FILE. To use it, from any node: JOBS/pilot/fairway submit …
"""
_BODY = r"""
set -u
umask 077
shared=$jobs/pilot
me=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
run=$shared/run-$me
state=$state/fairway-$me
ray_folder=/tmp/fairway-ray-$me
ray_log=$ray_folder/start-${SLURM_NODEID:-}.log
# Nothing but Fairway uses this Ray: one worker and a small store for objects are enough.
ray=("$python" -m ray.scripts.scripts start --block --disable-usage-stats --num-cpus=1 --object-store-memory=100000000
    --node-name="${SLURMD_NODENAME:-}" --min-worker-port=0 --max-worker-port=0 --temp-dir="$ray_folder")

say() { echo "$(date '+%F %T') pilot $me on ${SLURMD_NODENAME:-$HOSTNAME}: $*"; }
carried() { "$python" -m fairway.runtime.journal.carried_state "$@"; }
# Slurm may start a pilot again whose node it cannot reach, while the first one still runs there.
taken() {
    local owner
    owner=$(cat "$shared/owner" 2>/dev/null) && [ "$owner" != "$me" ]
}
alive() { [ -n "${1:-}" ] && kill -0 "$1" 2>/dev/null; }

# --- on every node: Ray, started again when a part of it dies ---

# `ray start --block` ends when its raylet is killed, but not when it ends by itself. A new head means a new Ray.
ray_is_well() {
    local now
    alive "$ray_pid" || return
    [ $((SECONDS - since_s)) -lt 30 ] || pgrep -P "$ray_pid" -x raylet >/dev/null || return
    now=$(cat "$run/life" 2>/dev/null)
    life=${life:-$now}
    [ "$SLURM_NODEID" = 0 ] || [ "$life" = "${now:-$life}" ]
}

start_ray() {
    since_s=$SECONDS
    # In a session of its own: Ray kills its process group when it ends.
    if [ "$SLURM_NODEID" = 0 ]; then
        echo "$SECONDS" >"$run/life.new" && mv "$run/life.new" "$run/life"
        setsid "${ray[@]}" --head --node-ip-address="${PILOT_HEAD%:*}" --port="${PILOT_HEAD##*:}" \
            --include-dashboard=false &>"$ray_log" &
    else
        life=''
        setsid "${ray[@]}" --address="$PILOT_HEAD" &>"$ray_log" &
    fi
    ray_pid=$!
}

end_ray() {
    [ -z "$ray_pid" ] || kill -KILL -- "-$ray_pid" 2>/dev/null
}

# Keepers are asked to have their ranks saved.
end_keepers() { pkill -TERM -U "$UID" -f -- "--nobodys-child ${jobs//[!a-zA-Z0-9\/_-]/.}/"; }

node() {
    local ending=''
    ray_pid='' life='' since_s=0
    # At scancel. While jobs save, Ray has to be there, and the first node ends this step when they have. But if Slurm
    # has no control groups, it has asked Ray to end as well.
    trap 'ending=yes' TERM
    mkdir -p "$ray_folder"
    trap 'end_keepers; end_ray; rm -rf "$ray_folder"; exit 0' USR1
    until taken; do
        if ! ray_is_well; then
            end_ray
            if [ -n "$ending" ]; then end_keepers; exit 0; fi
            [ -z "$ray_pid" ] || say "Ray is started again; it had said: $(tail -n 5 "$ray_log")"
            start_ray
        fi
        sleep 1
    done
    end_ray
}

# --- on the first node: the step above and the scheduler, until the time limit, `fairway down` or scancel ---

# The address of Ray's head. Ports below the range that the kernel gives to others.
find_head() {
    local address port
    address=$(for one in $(getent ahostsv4 "${SLURMD_NODENAME:-}" | awk '{print $1}') $(hostname -I); do
        case $one in 127.* | *:*) ;; *) echo "$one" && break ;; esac
    done)
    address=${address:-127.0.0.1}
    port=$((10000 + SLURM_JOB_ID % 20000))
    while (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; do port=$((port + 1)); done
    export PILOT_HEAD=$address:$port
}

# One pilot has the directory at a time: the last one that Slurm has started.
take() {
    local other
    other=$(cat "$shared/owner" 2>/dev/null)
    if [ -n "$other" ] && [ "${other%.*}" != "$SLURM_JOB_ID" ] &&
        [ -n "$(squeue -h -j "${other%.*}" -t RUNNING,SUSPENDED 2>/dev/null)" ]; then
        say "error: pilot $other still runs with $jobs; nothing was started"
        exit 1
    fi
    echo "$me" >"$shared/owner.new" && mv "$shared/owner.new" "$shared/owner"
}

prepare() {
    mkdir -p "$run" && cp "$0" "$run/pilot.sh" || exit 1
    od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >"$run/token"
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$run/token
    # Ray would make jobs nice and hide GPUs, and keepers must outlive its workers.
    export RAY_worker_niceness=0 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
    unset RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper
    export FAIRWAY_STATE=$state
    carried restore "$shared/state" "$state" "$jobs/jobs" || exit 1
    cat >"$shared/fairway.new" <<END
#!/bin/sh
# fairway, beside the scheduler of pilot $me
export FAIRWAY_STATE='$state'
exec srun --jobid=$SLURM_JOB_ID --overlap --nodes=1 --ntasks=1 --nodelist='$SLURMD_NODENAME' --gres=none --quiet \\
    '$python' -m fairway "\$@"
END
    chmod 700 "$shared/fairway.new" && mv "$shared/fairway.new" "$shared/fairway"
}

start_step() {
    local gpus=()
    [ -z "$step" ] || say "the step with Ray has ended; it is started again"
    # Whole nodes come with their GPUs, but a step gets only those that it asks for.
    if [ -n "${SLURM_GPUS_ON_NODE:-}" ] && [ -z "${SLURM_GPUS_PER_NODE:-}" ]; then
        gpus=(--gpus-per-node="$SLURM_GPUS_ON_NODE")
    fi
    # (Older versions of bash do not know an empty array.)
    srun ${gpus[@]+"${gpus[@]}"} --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --overlap --no-kill --wait=0 \
        --kill-on-bad-exit=0 --cpu-bind=none bash "$run/pilot.sh" node &
    step=$!
}

# The scheduler. If it ends with 0, somebody has stopped it, and the pilot ends. Otherwise it is started again, unless
# it never gets far.
start_scheduler() {
    if [ -n "$scheduler" ]; then
        wait "$scheduler" && why=stopped && return
        scheduler=''
        if [ $((SECONDS - since_s)) -ge 30 ]; then failures=0; fi
        failures=$((failures + 1))
        if [ "$failures" -gt 10 ]; then why=failed && return; fi
        say "the scheduler has ended; it is started again"
        sleep $((failures - 1))
    fi
    (exec 3<>"/dev/tcp/${PILOT_HEAD%:*}/${PILOT_HEAD##*:}") 2>/dev/null || return
    since_s=$SECONDS
    setsid "$python" -m fairway up --engine "ray:$PILOT_HEAD" --jobs "$jobs" --state "$state" ${up[@]+"${up[@]}"} &
    scheduler=$!
}

finish() {
    local left='[]'
    say "the end: $why"
    # If the scheduler does not answer, jobs may be left.
    if [ "$again" = yes ] && [ "$why" = limit ]; then
        left=$(timeout 20 "$python" -m fairway ls -n 1 --json 2>/dev/null) || left=unknown
    fi
    # The next pilot waits for the end of this one, however that comes.
    if [ "$left" != '[]' ]; then sbatch "$run/pilot.sh"; fi
    "$python" -m fairway down --jobs stop
    kill "$saver" 2>/dev/null
    carried save "$state" "$shared/state"
    kill -USR1 "$step" 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        alive "$step" || break
        sleep 1
    done
    rm -rf "$state" "$run" "$shared/fairway" "$shared/owner"
    [ "$why" != failed ]
}

main() {
    local why='' step='' scheduler='' since_s=0 saver='' failures=0
    mkdir -p "$shared" || exit 1
    take
    find_head
    prepare
    trap 'why=limit' USR1
    trap 'why=cancelled' TERM INT
    while [ -z "$why" ]; do
        alive "$step" || start_step
        alive "$scheduler" || start_scheduler
        if ! alive "$saver"; then
            "$python" -m fairway.runtime.journal.carried_state keep "$state" "$shared/state" &
            saver=$!
        fi
        if taken; then
            say "error: another pilot has taken $jobs; this one ends at once"
            [ -z "$scheduler" ] || kill -KILL -- "-$scheduler" 2>/dev/null
            exit 1
        fi
        sleep 1
    done
    finish
}

if [ "${1:-}" = node ]; then node; else main; fi
"""
