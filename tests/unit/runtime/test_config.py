"""The configuration's file: what it says, and what is wrong with it, by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.runtime.daemon.config import NO_CONFIG, ConfigError, Idle, Terms, parse_config, read_config

WHOLE = """
operators = ["root", "anna"]

[defaults]
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
        ("a = 1", "a: is not known here; known are operators, queues, users, defaults, idle"),
        ("[queues.a]\nmaxgpus = 1", "queues.a.maxgpus: is not known here"),
        ("[queues.a]\nmax_gpus = -1", "queues.a.max_gpus: -1 is not a whole number from 0"),
        ("[queues.a]\nmax_gpus = true", "queues.a.max_gpus: True is not a whole number"),
        ("[queues.a]\nmax_gpus = 1.5", "queues.a.max_gpus: 1.5 is not a whole number"),
        ("[queues.a]\nweight = 0", "queues.a.weight: 0 is not a number above 0"),
        ("[queues.a]\nweight = nan", "queues.a.weight: nan is not a number above 0"),
        ("[queues.a]\nlimit_s = 'soon'", "queues.a.limit_s: 'soon' is no duration"),
        ("[queues.a]\nlimit_s = inf", "queues.a.limit_s: inf is no duration"),
        ("[queues.a]\nlimit_s = 0", "queues.a.limit_s: must be more than 0"),
        ("[queues.a]\nlimit_s = '2h'\nmax_limit_s = '1h'", "queues.a.limit_s: is longer than max_limit_s"),
        ("[queues]\na = 3", "queues.a: has to be a table"),
        ("queues = 3", "queues: has to be a table"),
        ("[users.b]\nusers = ['c']", "users.b.users: is not known here"),
        ("[users.b]\ntypes = 3", "users.b.types: has to be a table of GPU types"),
        ("[users.b.types]\nh100 = 'many'", "users.b.types.h100: 'many' is not a whole number"),
        ("operators = 'root'", "operators: has to be a list of names"),
        ("operators = [1]", "operators: 1 is no name"),
        ("[defaults]\nlog_bytes = 10", "defaults.log_bytes: 10 is no size"),
        ("[defaults]\nretries = 1001", "defaults.retries: 1001 is not a whole number from 0 to 1000"),
        ("[defaults]\nqueue = 'b'\n[queues.a]", "defaults.queue: there is no queue 'b'"),
        ("[idle]\naction = 'shout'", "idle.action: 'shout' is neither 'hold' nor 'cancel'"),
        ("[idle]\nwarn_s = 60\nreclaim_s = 30", "idle.reclaim_s: is shorter than idle.warn_s"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "fairway.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "bytes.toml")
