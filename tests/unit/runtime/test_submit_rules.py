"""Requests on their way in: queues, defaults, weights, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairway.core.errors import InputError
from fairway.runtime.daemon.config import (
    NO_CONFIG,
    Config,
    NotAdmittedError,
    amended,
    changed_terms,
    given,
    parse_config,
    refuse,
    refuse_too_many,
)
from fairway.runtime.jobs.estimates import refuse_too_large, why_impossible
from fairway.runtime.jobs.request import JobRequest
from fairway.runtime.processes.host_size import HostSize
from fairway.testing.builders import cluster

CONFIG = parse_config("""
[defaults]
queue = "normal"
retries = 2
grace_s = 30
limit_s = "1d"

[queues.normal]
max_limit_s = "2d"
[queues.urgent]
weight = 4
priority = 100
limit_s = "1h"
users = ["anna"]
max_gpus_per_user = 4
[queues.tiny]
max_jobs = 3
max_gpus_per_job = 2

[users.anna]
weight = 0.5
max_priority = 10
[users.ben]
max_gpus = 6
max_jobs = 4
types = { t4 = 0 }
""")


def _one(**about: object) -> JobRequest:
    return JobRequest(**{"command": ("true",), "user": "carl", **about})  # type: ignore[arg-type]


def _admitted(**about: object) -> JobRequest:
    return _in(CONFIG, **about)


def _in(config: Config, **about: object) -> JobRequest:
    request = _one(**about)
    refuse(request, config)
    return given(request, config)


def test_what_a_job_does_not_say_is_filled_in() -> None:
    made = _admitted()
    assert (made.queue, made.retries, made.grace_s, made.limit_s) == ("normal", 2, 30.0, 86400.0)


def test_what_a_job_says_stays() -> None:
    made = _admitted(retries=1, grace_s=5.0, limit_s=10.0)
    assert (made.retries, made.grace_s, made.limit_s) == (1, 5.0, 10.0)


def test_weights_multiply_and_priorities_add_up() -> None:
    made = _admitted(user="anna", queue="urgent", weight=3.0, priority=7)
    assert (made.weight, made.priority, made.limit_s) == (6.0, 107, 3600.0)


def test_without_a_configuration_nothing_changes() -> None:
    request = _one(gpus=64)
    refuse(request, NO_CONFIG)
    assert given(request, NO_CONFIG) == request


def test_a_queue_that_the_configuration_does_not_name_is_refused() -> None:
    with pytest.raises(NotAdmittedError, match="there is no queue 'nope'; the configuration names none"):
        refuse(_one(queue="nope"), NO_CONFIG)
    with pytest.raises(NotAdmittedError, match=r"there is no queue 'urgnt'; did you mean urgent\?"):
        _admitted(queue="urgnt")


def test_tenants_name_queues_too() -> None:
    config = parse_config('[tenants.vision]\ncells = ["1x8"]\n')
    refuse(_one(queue="vision"), config)
    with pytest.raises(NotAdmittedError, match=r"did you mean vision\?"):
        refuse(_one(queue="visoin"), config)


SMALL = HostSize(2, 16 << 30)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cpus": 500.0}, "it asks for 500 CPUs; this machine has 2 CPUs and 16 GiB of memory"),
        ({"host_memory_bytes": 900 << 30}, "it asks for 900 GiB; this"),
        ({"host_memory_bytes": 900 << 30, "cpus": 500.0}, "it asks for 500 CPUs and 900 GiB"),
    ],
)
def test_more_cpus_or_memory_than_the_machine_has_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        refuse_too_large(_one(**asked), SMALL)
    refuse_too_large(_one(**asked), None)


def test_what_the_machine_has_may_be_asked_for() -> None:
    refuse_too_large(_one(cpus=2.0, host_memory_bytes=16 << 30), SMALL)


def test_the_cpus_of_a_gang_may_be_those_of_several_machines() -> None:
    several = SMALL._replace(machines=3)
    refuse_too_large(_one(cpus=6.0, gpus=8), several)
    for beyond in ({"cpus": 7.0, "gpus": 8}, {"cpus": 3.0}, {"host_memory_bytes": 17 << 30, "gpus": 8}):
        with pytest.raises(InputError, match="the largest machine has 2 CPUs"):
            refuse_too_large(_one(**beyond), several)


def test_a_type_that_is_not_here_can_be_lifted() -> None:
    here, wanted = cluster("v100:2"), _one(gpus=2, gpu_types=("l4",))
    assert why_impossible(wanted, here).endswith("there are v100 × 2 of 16 GiB. `--type any` takes GPUs of any type")
    assert "--type any" not in why_impossible(replace(wanted, gpus=3, gpus_min=3, gpus_max=3), here)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"queue": "nowhere"}, "there is no queue 'nowhere'; there are normal, urgent, tiny"),
        ({"queue": "urgent"}, "queue urgent is for anna only"),
        ({"user": "anna", "queue": "urgent", "gpus": 5}, "it asks for 5 GPUs; queue urgent may have 4"),
        ({"user": "ben", "gpus": 7}, "it asks for 7 GPUs; user ben may have 6"),
        ({"queue": "tiny", "gpus": 3}, "it asks for 3 GPUs; queue tiny may have 2"),
        ({"user": "anna", "priority": 11}, "priority 11 is above 10"),
        ({"limit_s": 3 * 86400.0}, "time limit 259200 s is above 172800 s"),
        ({"user": "ben", "gpu_types": ("t4",)}, "user ben may not use GPUs of type t4"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_reason(about: dict[str, object], why: str) -> None:
    with pytest.raises(NotAdmittedError) as caught:
        _admitted(**about)
    assert why in str(caught.value)


def test_an_elastic_job_is_cut_to_what_one_job_may_have() -> None:
    made = _admitted(queue="tiny", gpus=1, gpus_min=1, gpus_max=8, preempt="checkpoint")
    assert (made.gpus_min, made.gpus_max) == (1, 2)


def test_too_many_jobs_are_refused_together() -> None:
    active = [("ben", "normal"), ("ben", "tiny"), ("carl", "tiny")]
    refuse_too_many({("ben", "normal"): 2}, CONFIG, lambda: active)
    with pytest.raises(NotAdmittedError, match="user ben may have 4 jobs queued and running; this makes 5"):
        refuse_too_many({("ben", "normal"): 1, ("ben", "urgent"): 2}, CONFIG, lambda: active)
    with pytest.raises(NotAdmittedError, match="queue tiny may have 3 jobs"):
        refuse_too_many({("carl", "tiny"): 2}, CONFIG, lambda: active)


def test_a_queue_has_to_be_named_where_none_is_the_default() -> None:
    config = parse_config("[queues.a]\n[queues.b]")
    with pytest.raises(NotAdmittedError, match="name a queue; there are a, b"):
        _in(config)
    assert _in(parse_config("[queues.default]")).queue == "default"


def test_queued_jobs_follow_a_configuration_that_changes() -> None:
    job = _admitted(user="anna", queue="urgent", weight=3.0, priority=7)
    after = parse_config("[queues.urgent]\nweight = 1\npriority = -5\n[users.anna]\nweight = 2")
    changed = changed_terms(job, CONFIG, after)
    assert (changed.weight, changed.priority) == (6.0, 2)
    back = changed_terms(changed, after, CONFIG)
    assert (back.weight, back.priority) == (job.weight, job.priority)
    assert changed_terms(job, CONFIG, CONFIG) is job


def test_a_queued_job_is_changed_by_the_rules_for_new_ones() -> None:
    job = _admitted(user="anna", queue="urgent", priority=3)
    assert (job.priority, job.weight) == (103, 2.0)
    asked = {"priority": 10, "weight": 3.0, "name": "x", "deadline_s": None}
    assert amended(job, asked, CONFIG) == {"priority": 110, "weight": 6.0, "name": "x", "deadline_s": None}
    assert amended(job, {}, CONFIG) == {}
    with pytest.raises(NotAdmittedError, match="priority 11 is above 10, the most for user anna"):
        amended(job, {"priority": 11}, CONFIG)


def test_a_time_limit_cannot_be_changed_beyond_the_longest() -> None:
    job = _admitted(user="carl")
    assert amended(job, {"limit_s": 100.0}, CONFIG) == {"limit_s": 100.0}
    assert amended(job, {"limit_s": None}, CONFIG) == {"limit_s": 2 * 86400.0}
    assert amended(job, {"limit_s": None}, NO_CONFIG) == {"limit_s": None}
    with pytest.raises(NotAdmittedError, match="above 172800 s, the most for queue normal"):
        amended(job, {"limit_s": 2.5 * 86400}, CONFIG)


def test_what_was_changed_follows_the_configuration_too() -> None:
    job = _admitted(user="anna", queue="urgent")
    changed = JobRequest.from_plain({**job.plain(), **amended(job, {"priority": 5, "weight": 3.0}, CONFIG)})
    without = changed_terms(changed, CONFIG, NO_CONFIG)
    assert (without.priority, without.weight) == (5, 3.0)
