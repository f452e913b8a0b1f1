"""`fairway up`, `down` and `status`: the scheduler itself."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from fairway.cli.live import NOT_ALLOWED, Where, state_folder
from fairway.cli.options import flag, option, takes
from fairway.core.errors import FairwayError, InputError

if TYPE_CHECKING:
    from fairway.api.server import Server
    from fairway.runtime.daemon.daemon import Daemon, Stopped
    from fairway.runtime.daemon.settings import Options

STOP_S = 30.0
"""How long a scheduler may take to stop."""


class DownError(FairwayError):
    """The scheduler cannot be stopped."""

    exit_code = NOT_ALLOWED


class FailedError(FairwayError):
    """The scheduler has ended by itself."""

    exit_code = 1


@dataclass(frozen=True)
class UpOptions:
    """How to run a scheduler. An option that is not given is as last time."""

    policy: Annotated[
        str | None, option("--policy", "The policy. Default: as last time, or tiresias", "NAME[:key=value,…]")
    ] = None
    round: Annotated[
        str | None,
        option(
            "--round",
            "Seconds between decisions; 0: at every event, auto: the policy's own. Default: as last time, or auto",
            "S|auto",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        option(
            "--gpus",
            "auto: the GPUs of this machine, or a slot per core if it has no NVIDIA driver; nvidia: real GPUs only, "
            "nvidia:0,2: some of them; N: N virtual GPUs, v100:2,k80:4: some of these types. Default: as last time, or "
            "auto",
            "auto|N|TYPE:N,...|nvidia[:0,2]",
        ),
    ] = None
    state: Annotated[
        str | None, option("--state", "The state directory. Default: $FAIRWAY_STATE or ~/.local/state/fairway", "DIR")
    ] = None
    listen: Annotated[
        str | None,
        option(
            "--listen",
            "Also listen on loopback TCP, with a token, such as 127.0.0.1:8080; none: do not. Default: as last time",
            "ADDR",
        ),
    ] = None
    web: Annotated[
        str | None,
        option(
            "--web",
            "Serve the web page on loopback TCP: at 127.0.0.1:3247 (or a free port), or at ADDR; none: do not. "
            "Default: as last time",
            "[ADDR]",
        ),
    ] = None
    placement: Annotated[
        str | None,
        option(
            "--placement",
            "Which GPUs a job gets: packed, spread, freest or skew. Default: as last time, or packed",
            "NAME",
        ),
    ] = None
    config: Annotated[
        str | None,
        option("--config", "Queues, limits and users; none: DIR/fairway.toml. Default: as last time, or none", "FILE"),
    ] = None
    open_to_all: Annotated[
        bool | None,
        flag("--open-to-all/--no-open-to-all", "Let other users submit; their jobs run as you. Default: as last time"),
    ] = None
    min_run: Annotated[
        str | None,
        option(
            "--min-run",
            "Seconds for which a job that has just started is left alone; auto: at least 5, and three times what a "
            "restart of it costs. Default: as last time, or auto",
            "S|auto",
        ),
    ] = None
    plugin: Annotated[
        list[str] | None,
        option(
            "--plugin",
            "A Python file with your own policies; may be repeated; none: no file. Default: as last time",
            "FILE",
        ),
    ] = None

    engine: Annotated[
        str | None,
        option(
            "--engine",
            "local: this machine; ray:ADDRESS: all machines of a Ray cluster, ray:auto: of the one that is running. "
            "Default: as last time, or local",
            "local|ray:ADDR",
        ),
    ] = None
    jobs: Annotated[
        str | None,
        option(
            "--jobs",
            "The directory for logs and checkpoints, which all machines share; none: the state directory. Default: as "
            "last time, or none",
            "DIR",
        ),
    ] = None

    @property
    def folder(self) -> Path:
        """The state directory."""
        return state_folder(self.state)

    def check(self) -> None:
        """Refuse a wrong name or number before anything is started."""
        from fairway.placement import placement
        from fairway.runtime.daemon.settings import Choice

        options = self.options()
        if self.placement is not None:
            placement(self.placement)
        choice = Choice(options, {})
        choice.check_config()
        if self.engine is not None:
            choice.check_engine()

    def check_start(self) -> None:
        """Refuse what would keep the scheduler from starting, including options saved last time. Start nothing."""
        from fairway.policies import make_policy
        from fairway.runtime.daemon.daemon import facts_of_last_time
        from fairway.runtime.daemon.settings import Choice, Settings
        from fairway.runtime.journal.job_folders import refuse_without_journal

        choice = Choice(self.options(), facts_of_last_time(self.folder))
        refuse_without_journal(self.folder, choice.root(self.folder))
        choice.check_config()
        with choice.blamed("config"):
            Settings(self.folder, choice.config)
        choice.load_plugins()
        if self.policy is not None:
            make_policy(self.policy)

    def options(self) -> Options:
        """The same for the runtime, with absolute paths."""
        from fairway.runtime.daemon.settings import NONE, Options

        plugins = self.plugin or None
        if plugins is not None and NONE in plugins:
            if plugins != [NONE]:
                raise InputError(f"--plugin {NONE} and --plugin with a file cannot be combined")
            plugins = []
        return Options(
            self.folder,
            self.policy,
            _seconds("--round", self.round),
            self.gpus,
            self.placement,
            self.config,
            None if plugins is None else tuple(plugins),
            self.listen,
            self.open_to_all,
            self.engine,
            self.jobs,
            self.web,
            _seconds("--min-run", self.min_run),
        )

    def words(self) -> list[str]:
        """The options that were given, as words of a command line."""
        from fairway.runtime.daemon.settings import NONE, REMEMBERED

        options, words = self.options(), list[str]()
        for name, one in REMEMBERED.items():
            value = getattr(options, name)
            if name in ("config", "jobs") and value not in (None, NONE):
                value = str(Path(value).absolute())
            if value is False or value == ():
                words += one.undo.split()
            elif name == "plugins" and value is not None:
                words += [word for path in value for word in (one.option, str(Path(path).absolute()))]
            elif value is not None:
                words += one.given(value).split(" ", 1)
        return words


def _seconds(name: str, told: str | None) -> float | str | None:
    """The value of an option that is a duration or "auto", if it was given."""
    from fairway.core.units import duration_s
    from fairway.runtime.daemon.settings import AUTO

    if told is None or told == AUTO:
        return told
    try:
        seconds = duration_s(told)
    except InputError:
        raise InputError(f"{name} {told!r} is neither a duration, such as 90 or 2m, nor {AUTO!r}") from None
    if seconds > 86400:
        raise InputError(f"{name} {told} is more than a day")
    return seconds


@takes(settings=UpOptions)
def up(
    settings: UpOptions,
    service: Annotated[
        bool, typer.Option("--service", help="Install and start it as a user service (systemd) instead")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when it is ready")] = False,
) -> None:
    """Start the scheduler in the foreground, for this machine or a Ray cluster. Ctrl-C ends it; jobs keep running.

    \b
    fairway up
    fairway up --web
    fairway up --gpus 4 --policy las --state /tmp/try
    fairway up --plugin my_policy.py --policy mine
    fairway up --engine ray:auto --jobs /shared/fairway
    fairway up --service
    """
    settings.check()
    if service:
        if json:
            raise InputError("--json is for a scheduler in the foreground, not for --service")
        from fairway.cli.service import install

        settings.check_start()
        install(settings.folder, settings.words())
        return
    from fairway.api.connections import raise_file_limit
    from fairway.api.page_port import page_socket, tcp_socket
    from fairway.api.server import serve
    from fairway.runtime.daemon.daemon import AlreadyUpError, Daemon, running_daemon
    from fairway.runtime.journal.recovery import collect_rarely
    from fairway.runtime.processes.environment import keep_to_ourselves

    keep_to_ourselves(raise_file_limit())
    if running_daemon(settings.folder) is not None:
        raise DownError(f"a scheduler is already running in {settings.folder}")
    try:
        daemon = Daemon(settings.options(), listen=tcp_socket, listen_web=page_socket)
        collect_rarely()
    except AlreadyUpError as error:
        raise DownError(str(error)) from None
    except OSError as error:
        raise InputError(f"the state directory cannot be used: {error.strerror}", path=str(settings.folder)) from None
    open_to_all = daemon.choice.open_to_all
    serve(daemon, daemon.listener, open_to_all=open_to_all, on_ready=lambda server: _greet(server, as_json=json))
    if daemon.scheduler.failure is not None:
        # Not 0: a service that failed is started again.
        raise FailedError(f"scheduling has failed: {daemon.scheduler.failure}. Jobs that run go on by themselves")
    going = sum(record.state == "RUNNING" for record in daemon.scheduler.store)
    waiting = sum(record.state.waits for record in daemon.scheduler.store)
    text = f"scheduling has stopped; {_left(daemon.parting, going, waiting)}"
    _say(text, sys.stderr if json else sys.stdout)


def _greet(server: Server, *, as_json: bool) -> None:
    """Print one line: the GPUs found, the policy, and where it listens. With a web page, one more: where it is."""
    daemon = server.daemon
    scheduler, cluster = daemon.scheduler, daemon.scheduler.cluster
    if as_json:
        _tell_ready(daemon)
        return
    kinds = ", ".join(f"{cluster.gpus_by_type[at]} × {kind.name}" for at, kind in enumerate(cluster.types))
    what = f"virtual GPUs ({kinds})" if scheduler.engine.devices is None else f"GPUs ({kinds})"
    what += f" on {len(cluster.nodes)} nodes" if daemon.choice.ray is not None else ""
    active = sum(not record.state.ended for record in scheduler.store)
    taken = f" · {_counted(active, 'job')} taken over" if active else ""
    # The real address: port 0 asks for any free port.
    address = daemon.about.get("listen")
    also = f" and http://{address} (its token is in {daemon.options.folder / 'token'})" if address else ""
    _say(f"{what} · policy {scheduler.policy_text}{taken} · listening on {daemon.socket}{also}")
    if daemon.choice.web is not None:
        # A link signs in whoever reads it first, so it does not go into the log of a service.
        link = server.own_link() if sys.stdout.isatty() else f"http://{daemon.about['web']}/ (`fairway web` signs in)"
        _say(f"the web page is at {link}")


def _tell_ready(daemon: Daemon) -> None:
    """The same for a program."""
    import json

    told = {
        "pid": os.getpid(),
        "folder": str(daemon.options.folder),
        "socket": str(daemon.socket),
        "listen": daemon.about.get("listen"),
        "web": daemon.about.get("web"),
        "gpus": len(daemon.scheduler.cluster.node_of_gpu),
        "virtual": daemon.scheduler.engine.devices is None,
        "policy": daemon.scheduler.policy_text,
        "jobs": sum(not record.state.ended for record in daemon.scheduler.store),
    }
    _write(json.dumps(told, ensure_ascii=False), sys.stdout)


def _left(parting: str, going: int, waiting: int) -> str:
    """What happens to the jobs that are left. `parting` is what `fairway down` was asked to do with them."""
    waits = f"{_counted(waiting, 'job')} {'waits' if waiting == 1 else 'wait'}"
    if not going:
        return f"{waits} for the next `fairway up`" if waiting else "no job was left"
    jobs, it = _counted(going, "running job"), "it" if going == 1 else "them"
    now, later = {
        "stop": (f"`fairway down` stops {jobs}", f"starts {it} again"),
        "suspend": (f"`fairway down` suspends {jobs}", f"lets {it} go on"),
    }.get(parting, (f"{jobs} {'goes on by itself' if going == 1 else 'go on by themselves'}", f"takes {it} over"))
    return f"{now}{f', {waits}' if waiting else ''}; the next `fairway up` {later}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _say(text: str, to: TextIO | None = None) -> None:
    _write(f"fairway: {text}", to or sys.stdout)


def _write(line: str, stream: TextIO) -> None:
    """Write a line. If nobody can read it any more, the scheduler goes on."""
    with suppress(OSError, ValueError):
        stream.write(f"{line}\n")
        stream.flush()


@takes(where=Where)
def down(
    where: Where,
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs",
            help="leave: jobs keep running. stop: they save, stop, and run again later; without a checkpoint they "
            "start from the beginning. suspend: they stay in memory, stopped, until the next `up`",
            metavar="leave|stop|suspend",
        ),
    ] = "leave",
) -> None:
    """Stop the scheduler. Jobs keep running, or are stopped or suspended until it is started again.

    \b
    fairway down
    fairway down --jobs stop
    fairway down --jobs suspend
    """
    from fairway.client import NotUpError
    from fairway.runtime.daemon.daemon import announce, running_daemon
    from fairway.runtime.processes.trusted_path import refuse_untrusted

    if jobs not in _PARTINGS:
        raise InputError(f"--jobs {jobs!r} is not one of {', '.join(_PARTINGS)}")
    if where.url is not None:
        raise InputError(
            "`fairway down` stops the scheduler of a state directory on this machine; it does not take --url"
        )
    refuse_untrusted(where.folder)
    told = running_daemon(where.folder)
    if told is None and jobs == "leave":
        raise NotUpError(f"no scheduler is running at {where.folder}")
    if told is not None:
        announce(where.folder, told, jobs)
        try:
            _end(int(told["pid"]))
        except DownError:
            announce(where.folder, told, "leave")
            raise
    done, text = _PARTINGS[jobs](where.folder)
    head = "the scheduler has stopped" if told else "no scheduler was running"
    where.show({"stopped": told is not None, **done}, lambda: f"{head}{text}\n")


def _leave(folder: Path) -> tuple[dict[str, int], str]:
    return {"jobs_stopped": 0}, ""


def _stop(folder: Path) -> tuple[dict[str, int], str]:
    """Stop all jobs; what was done, as JSON values and as a text."""
    from fairway.runtime.daemon.daemon import stop_jobs

    done = stop_jobs(folder)
    return {"jobs_stopped": done.jobs, "jobs_from_the_beginning": done.from_the_beginning}, _stopped_text(done)


def _stopped_text(done: Stopped) -> str:
    if not done.jobs:
        return "; no job was running"
    single = done.jobs == 1
    text = f"; {_counted(done.jobs, 'running job')} {'was stopped and waits' if single else 'were stopped and wait'}"
    text += " for the next one"
    if not done.from_the_beginning:
        return text
    who = "It" if single else f"{done.from_the_beginning:,} of them"
    return (
        f"{text}. {who} had saved nothing and will start from the beginning"
        " (`--jobs suspend` keeps jobs in memory instead)"
    )


def _suspend(folder: Path) -> tuple[dict[str, int], str]:
    from fairway.runtime.daemon.daemon import suspend_jobs

    done = suspend_jobs(folder)
    text = "; no job was running"
    if done:
        stand = (
            "stands still, keeps its memory, and goes on" if done == 1 else "stand still, keep their memory, and go on"
        )
        text = f"; {_counted(done, 'running job')} {stand} with the next one"
    return {"jobs_stopped": 0, "jobs_suspended": done}, text


_PARTINGS: dict[str, Callable[[Path], tuple[dict[str, int], str]]] = {
    "leave": _leave,
    "stop": _stop,
    "suspend": _suspend,
}


def _end(pid: int) -> None:
    """Ask a scheduler to end, and wait until it has."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], STOP_S)[0]:
            raise DownError(f"the scheduler (pid {pid}) has not ended within {STOP_S:g} s")
    except ProcessLookupError:
        return
    except PermissionError:
        raise DownError(f"the scheduler (pid {pid}) belongs to another user") from None
    finally:
        os.close(process)


@takes(where=Where)
def status(where: Where) -> None:
    """Show the scheduler itself: policy, GPUs, queue and disk.

    \b
    fairway status
    """
    from fairway.cli.live_tables import status_table

    told = where.client().status()
    where.show(told, lambda: status_table(told))


@takes(where=Where)
def reload(where: Where) -> None:
    """Read the configuration again. A configuration with an error is reported and changes nothing.

    \b
    fairway reload
    """
    told = where.client().reload()
    file = told["file"]
    where.show(told, lambda: f"{file} was read\n" if file else "there is no configuration; the defaults are in force\n")
