"""`up` takes options that are not given from the last time, even after a crash, and says so."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from live_cli import LiveCli, live_cli_in

from fairway.api.server import Server, tcp_socket
from fairway.core.errors import FairwayError, InputError
from fairway.runtime.daemon.daemon import Daemon
from fairway.runtime.daemon.settings import Choice, Options


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LiveCli]:
    (tmp_path / "cli.toml").write_text("[queues.default]\nmax_gpus_per_job = 1\n")
    yield from live_cli_in(tmp_path)


def _killed(cli: LiveCli) -> str:
    assert cli.daemon is not None
    cli.daemon.kill()
    return cli.daemon.communicate(timeout=60)[1]


def test_limits_and_addresses_outlive_a_scheduler_that_was_killed(cli: LiveCli) -> None:
    given = ("--config", "cli.toml", "--round", "0.25", "--listen", "127.0.0.1:0", "--placement", "spread")
    cli.start("--gpus", "2", *given, "--open-to-all")
    assert "as last time" not in _killed(cli)
    assert " and http://127.0.0.1:" in cli.start()
    assert cli("submit", "--gpus", "2", "--", "true").code == 2, "the limits of last time"
    assert cli("policy", "--json").json["round_s"] == 0.25
    assert cli("status", "--json").json["configuration"] == str(cli.folder / "cli.toml")
    told = _killed(cli)
    for line in (
        "--gpus 2, as last time (`--gpus auto` takes",
        f"--config {cli.folder / 'cli.toml'}, as last time (`--config none` goes back to",
        "--round 0.25, as last time (`--round auto` leaves",
        "--listen 127.0.0.1:0, as last time (`--listen none` does",
        "--placement spread, as last time (`--placement packed` is",
        "--open-to-all, as last time (`--no-open-to-all` keeps",
    ):
        assert line in told
    usual = ("--config", "none", "--round", "auto", "--listen", "none", "--placement", "packed", "--no-open-to-all")
    assert "http://" not in cli.start("--gpus", "auto", *usual)
    assert cli("status", "--json").json["configuration"] is None
    assert "as last time" not in _killed(cli)
    assert "http://" not in cli.start()
    assert cli("policy", "--json").json["round_s"] != 0.25
    assert "as last time" not in _killed(cli)


def test_a_configuration_of_last_time_that_is_gone_is_one_line(cli: LiveCli) -> None:
    cli.start("--gpus", "1", "--config", "cli.toml")
    _killed(cli)
    (cli.folder / "cli.toml").rename(cli.folder / "other.toml")
    call = cli("up")
    assert (call.code, call.out) == (2, "")
    assert call.err.count("\n") == 1
    for part in (str(cli.folder / "cli.toml"), "no such file", "that of last time", "`--config none`"):
        assert part in call.err
    (cli.folder / "cli.toml").write_text("[queues.default]\nmax_gpus_per_job = 'many'\n")
    call = cli("up")
    assert call.err.count("\n") == 1
    for part in ("max_gpus_per_job", "that of last time", "`--config none`"):
        assert part in call.err
    cli.start("--config", "other.toml")
    assert cli("submit", "--gpus", "2", "--", "true").code == 2
    _killed(cli)
    cli.start("--config", "none")


def test_an_address_of_last_time_that_is_taken_is_one_line(cli: LiveCli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    cli.start("--gpus", "1", "--listen", f"127.0.0.1:{port}")
    _killed(cli)
    with socket.create_server(("127.0.0.1", port)):
        call = cli("up")
    assert call.code == 2
    assert call.err.splitlines()[-1].endswith("(--listen is that of last time; give another, or `--listen none`)")
    assert f"127.0.0.1:{port}" in cli.start()


def _journal(folder: Path) -> list[str]:
    """All that the journal holds, line by line."""
    with closing(sqlite3.connect(folder / "journal.db")) as db:
        return list(db.iterdump())


def _left_state(folder: Path, **options: str) -> list[str]:
    """The journal of a scheduler that has gone, and did not have what is usual."""
    Daemon(Options(folder, policy="las", gpus="2", **options)).close()  # type: ignore[arg-type]
    return _journal(folder)


@pytest.mark.parametrize("given", [True, False], ids=["given", "own"])
def test_a_configuration_that_is_refused_changes_nothing(tmp_path: Path, given: bool) -> None:
    before = _left_state(tmp_path)
    path = tmp_path / ("cli.toml" if given else "fairway.toml")
    path.write_text("nonsense = 1\n")
    with pytest.raises(InputError, match="nonsense"):
        Daemon(Options(tmp_path, policy="fifo", gpus="3", round_s=9.0, config=path if given else None))
    assert _journal(tmp_path) == before
    path.unlink()
    daemon = Daemon(Options(tmp_path))
    assert daemon.scheduler.policy_text == "las"
    assert not [line for line in daemon.remarks if "others than last time" in line]
    daemon.close()


def test_an_address_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        before = _left_state(tmp_path, listen=address)
        for listen in (None, address):
            with pytest.raises(InputError, match="Address already in use"):
                Daemon(Options(tmp_path, policy="fifo", gpus="3", listen=listen), listen=tcp_socket)
            assert _journal(tmp_path) == before
    daemon = Daemon(Options(tmp_path), listen=tcp_socket)
    assert daemon.listener is not None
    assert daemon.listener.getsockname()[1] == int(address.rpartition(":")[2])
    daemon.close()
    assert daemon.listener.fileno() == -1


def test_a_start_that_is_refused_gives_its_address_back(tmp_path: Path) -> None:
    opened: list[socket.socket] = []

    def listen(address: str) -> socket.socket:
        opened.append(tcp_socket(address))
        (tmp_path / "journal.db").write_text("no journal at all, " * 300)
        (tmp_path / "jobs").mkdir()
        return opened[0]

    with pytest.raises(FairwayError, match="no journal of Fairway"):
        Daemon(Options(tmp_path, gpus="1", listen="127.0.0.1:0"), listen=listen)
    assert opened[0].fileno() == -1


def test_a_server_takes_the_options_in_force(tmp_path: Path) -> None:
    Daemon(Options(tmp_path, gpus="1", open_to_all=True, placement="spread", round_s=2.0)).close()
    daemon = Daemon(Options(tmp_path))
    assert (daemon.choice.open_to_all, daemon.choice.placement, daemon.choice.round_s) == (True, "spread", 2.0)
    assert daemon.scheduler.loop.round_s == 2.0
    server = Server(daemon, open_to_all=daemon.choice.open_to_all)
    assert server.app.state.context.access.open_to_all
    server.close()


def test_paths_are_kept_as_absolute_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = Choice(Options(tmp_path, config=Path("a.toml"), plugins=("b.py",)), {}).facts()
    assert kept["config_file"] == str(tmp_path / "a.toml")
    monkeypatch.chdir("/")
    again = Choice(Options(tmp_path), kept)
    assert (again.config, again.plugins) == (tmp_path / "a.toml", (str(tmp_path / "b.py"),))
    assert again.facts() == kept
    with pytest.raises(InputError, match="--config is that of last time"):
        again.check_config()


def test_what_was_given_is_not_blamed_on_last_time(tmp_path: Path) -> None:
    last = Choice(Options(tmp_path, round_s=0.0, listen="127.0.0.1:1"), {}).facts()
    given = Choice(Options(tmp_path, round_s="auto", listen="none"), last)
    assert (given.round_s, given.listen, given.remarks()) == (None, None, [])
    assert Choice(Options(tmp_path), last).round_s == 0.0
    usual = Choice(Options(tmp_path), {})
    for choice in (given, usual):
        with pytest.raises(InputError) as caught, choice.blamed("listen"):
            raise InputError("no")
        assert str(caught.value) == "no"
