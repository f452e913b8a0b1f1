"""What keeps a scheduler over many machines from starting: one clear line, exit code 2, and nothing started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cluster_cli import ClusterCli, cluster_cli
from machines import Machines, free_port

WAIT_S = 60.0
AHEAD_S = 600


@pytest.fixture
def cli(_machines: Machines) -> Iterator[ClusterCli]:
    """A scheduler that is not up. The machines are as the test before has left them, but nobody has them."""
    _machines.forget_actors()
    made = ClusterCli(_machines, _machines.shared / f"t{len(list(_machines.shared.iterdir()))}")
    try:
        yield made
    finally:
        made.close()


def begun(cli: ClusterCli, *options: str, **env: str) -> subprocess.Popen[str]:
    """`fairway up`, which is not going to start, in a state directory of its own."""
    own = {"FAIRWAY_STATE": str(cli.folder / f"state-{time.monotonic_ns()}")}
    return subprocess.Popen(
        [sys.executable, "-m", "fairway", "up", *(options or cli.engine("--policy", "fifo"))],
        cwd=cli.folder,
        env={name: text for name, text in {**cli.env, **own, **env}.items() if text},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(by: subprocess.Popen[str]) -> str:
    """What it says."""
    try:
        out, err = by.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        by.kill()
        pytest.fail(f"it has started: {by.communicate()}")
    assert by.returncode == 2, (out, err)
    assert len(err.splitlines()) == 1, err
    assert not out
    return err


def refused(cli: ClusterCli, *options: str, **env: str) -> str:
    """What `fairway up` says when it does not start."""
    return said(begun(cli, *options, **env))


def test_there_is_no_ray_or_no_way_in(cli: ClusterCli) -> None:
    """All of them at the same time: some wait for an answer."""
    nobody, token = f"127.0.0.1:{free_port()}", {"RAY_AUTH_TOKEN": ""}
    options = ("--jobs", str(cli.jobs), "--gpus", "2")
    tries = [
        (f"there is no Ray at {nobody}", begun(cli, "--engine", f"ray:{nobody}", *options)),
        ("nowhere", begun(cli, "--engine", "ray:nowhere", *options)),
        ("token", begun(cli, RAY_AUTH_TOKEN="f" * 32)),
        ("token", begun(cli, **token)),
        ("token", begun(cli, **token, RAY_AUTH_MODE="disabled")),
    ]
    for words, by in tries:
        assert words in said(by)


def test_a_file_is_where_jobs_should_be(cli: ClusterCli) -> None:
    cli.jobs.write_text("")
    assert str(cli.jobs) in refused(cli)


def test_ray_is_too_old(cli: ClusterCli) -> None:
    """What the bridge says when it finds such a Ray."""
    package = cli.folder / "old" / "ray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '2.9.3'\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = ["-m", "fairway.runtime.processes.ray_bridge", str(theirs.fileno()), cli.machines.gcs_address, "{}"]
        done = subprocess.run(
            [sys.executable, *words],
            env={**cli.env, "PYTHONPATH": f"{package.parent}:{cli.env['PYTHONPATH']}"},
            pass_fds=[theirs.fileno()],
            timeout=WAIT_S,
        )
        assert done.returncode
        assert "Ray 2.9.3 is too old; 2.52 is the oldest" in json.loads(ours.recv(4096))["trouble"]


def test_the_directory_is_not_shared(cli: ClusterCli) -> None:
    if not cli.machines.apart:
        pytest.skip("needs root")
    cli.jobs.mkdir()
    cli.machines[1].enter("mount", "-t", "tmpfs", "alone", str(cli.jobs))
    try:
        told = refused(cli)
    finally:
        cli.machines[1].enter("umount", str(cli.jobs))
    assert f"n1: {cli.jobs} is not shared with it" in told


def test_a_clock_is_minutes_ahead(cli: ClusterCli) -> None:
    """Python on one machine is told another time."""
    folder = cli.folder / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import time\nreal = time.time\ntime.time = lambda: real() + {AHEAD_S}\n")
    one = cli.machines[2]
    one.more_env["PYTHONPATH"] = f"{folder}:{one.env()['PYTHONPATH']}"
    one.restart_ray()
    try:
        assert "n2: its clock is 60" in refused(cli)
    finally:
        one.more_env.clear()
        one.restart_ray()


def test_two_schedulers_want_the_same_machines(machines: Machines) -> None:
    with cluster_cli(machines) as first:
        job = first.work(100_000)
        first.begun(job)
        second = ClusterCli(machines, machines.shared / "second")
        told = refused(second)
        assert "another scheduler uses this Ray cluster" in told
        assert str(first.state) in told
        first.enough()
        first.ended([job])
