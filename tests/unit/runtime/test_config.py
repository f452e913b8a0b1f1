"""The configuration's file: what it says, and what is wrong with it, by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.runtime.daemon.config import NO_CONFIG, ConfigError, Idle, Terms, parse_config, read_config

WHOLE = """
operators = ["root", "anna"]

[defaults]
export = "PATH,HF_HOME"
queue = "normal"
retries = 1
grace_s = "2m"
limit_s = "1d"
log_bytes = "10M"

[queues.normal]
weight = 1
max_gpus = 6
users = ["anna", "ben"]
max_gpus_per_user = 3
limit_s = "12h"

[queues.urgent]
weight = 4.5
priority = 100
max_running = 2
max_limit_s = 3600

[users.ben]
weight = 2
types = { H100 = 2, t4 = 0 }

[users."*"]
max_gpus = 4
max_jobs = 50

[idle]
warn_s = "10m"
reclaim_s = 1800
action = "cancel"
"""


def test_every_key_arrives() -> None:
    config = parse_config(WHOLE)
    assert config.operators == ("root", "anna")
    assert (config.defaults.export, NO_CONFIG.defaults.export) == ("PATH,HF_HOME", "ALL")
    assert (config.defaults.queue, config.defaults.retries) == ("normal", 1)
    assert (config.defaults.grace_s, config.defaults.limit_s, config.defaults.log_bytes) == (120.0, 86400.0, 10 << 20)
    normal, urgent = config.queues["normal"], config.queues["urgent"]
    assert (normal.max_gpus, normal.users, normal.max_gpus_per_user, normal.limit_s) == (6, ("anna", "ben"), 3, 43200)
    assert (urgent.weight, urgent.priority, urgent.max_running, urgent.max_limit_s) == (4.5, 100, 2, 3600.0)
    assert config.user_of("ben") == Terms(weight=2.0, types={"h100": 2, "t4": 0})
    assert (config.user_of("carl").max_gpus, config.user_of("carl").max_jobs) == (4, 50)
    assert config.idle == Idle(600.0, 1800.0, "cancel")


def test_an_empty_file_limits_nothing() -> None:
    assert parse_config("") == NO_CONFIG


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\nb = \nc = 2", "line 2"),
        (
            "a = 1",
            "a: there is no such key; there are operators, private, sharing, over_share, queues",
        ),
        ("[queues.a]\nmaxgpus = 1", "queues.a.maxgpus: there is no such key; did you mean max_gpus?"),
        ("[queues.a]\nmax_gpus = -1", "queues.a.max_gpus: must be at least 0, not -1"),
        ("[queues.a]\nmax_gpus = true", "queues.a.max_gpus: must be a whole number, not True"),
        ("[queues.a]\nmax_gpus = 1.5", "queues.a.max_gpus: must be a whole number, not 1.5"),
        ("[queues.a]\nweight = 0", "queues.a.weight: must be more than 0, not 0"),
        ("[queues.a]\nweight = nan", "queues.a.weight: must be a finite number, not nan"),
        ("[queues.a]\nlimit_s = 'soon'", "queues.a.limit_s: 'soon' is not a duration"),
        ("[queues.a]\nlimit_s = inf", "queues.a.limit_s: must be a finite number, not inf"),
        ("[queues.a]\nlimit_s = 0", "queues.a.limit_s: must be more than 0"),
        ("[queues.a]\nlimit_s = '2h'\nmax_limit_s = '1h'", "queues.a: limit_s is longer than max_limit_s"),
        ("[queues]\na = 3", "queues.a: must have named fields, not 3"),
        ("[defaults]\nlog_bytes = '1X'", "defaults.log_bytes: '1X' is not a size; write 512M or 16G"),
        ("[idle]\nwarn_s = 'x'\naction = 1", "idle.warn_s: 'x' is not a duration"),
        ("[idle]\nwarn_s = 'x'\naction = 1", "; idle.action: must be 'hold' or 'cancel', not 1"),
        ("[queues.'a/b']\nweight = 2", "queues.a/b: has characters that it may not have"),
        (f"[queues.a]\nmax_gpus = {'9' * 5000}", "limit"),
        ("queues = 3", "queues: must have named fields, not 3"),
        ("[users.b]\nusers = ['c']", "users.b.users: there is no such key; there are weight, priority"),
        ("[users.b]\ntypes = 3", "users.b.types: must have named fields, not 3"),
        ("[users.b.types]\nh100 = 'many'", "users.b.types.h100: must be a whole number, not 'many'"),
        ("operators = 'root'", "operators: must be a list, not 'root'"),
        ("operators = [1]", "operators.0: must be text, not 1"),
        ("[defaults]\nlog_bytes = 10", "defaults.log_bytes: must be at least 4,096, not 10"),
        ("[defaults]\nexport = 'A=1'", "defaults.export: has characters that it may not have: 'A=1'"),
        ("[defaults]\nretries = 1001", "defaults.retries: must be at most 1,000, not 1001"),
        ("[defaults]\nqueue = 'b'\n[queues.a]", "defaults.queue: there is no queue 'b'"),
        ("[idle]\naction = 'shout'", "idle.action: must be 'hold' or 'cancel', not 'shout'"),
        ("[idle]\nwarn_s = 60\nreclaim_s = 30", "idle: reclaim_s is shorter than warn_s"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "fairway.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("'1h30m'", 5400.0), ("'1-12:00:00'", 129600.0), ("'12:00:00'", 43200.0), ("'1.5d'", 129600.0), ("90", 90.0)],
)
def test_a_duration_is_written_as_on_the_command_line(written: str, seconds: float) -> None:
    config = parse_config(f"[queues.a]\nlimit_s = {written}")
    assert config.queues["a"].limit_s == seconds


def test_sizes_have_units_of_1024_or_none() -> None:
    for written, size in (("'8K'", 8192), ("'1.5GiB'", 3 << 29), ("'8192'", 8192), ("8192", 8192)):
        assert parse_config(f"[defaults]\nlog_bytes = {written}").defaults.log_bytes == size


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "bytes.toml")
