"""What would happen with other GPUs: forecasts from a scheduler in simulated time, side by side with the present."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fairway.api.other_cluster import other_cluster
from fairway.api.what_if import what_if
from fairway.cli.why import _outlook, gpu_counts
from fairway.core.cluster import Cluster, GpuType, Node
from fairway.core.errors import InputError
from fairway.placement import placement
from fairway.policies import make_policy
from fairway.runtime.daemon.scheduler import Scheduler
from fairway.runtime.daemon.settings import FILE_NAME, Settings
from fairway.runtime.jobs.request import JobRequest
from fairway.testing.simulated_site import Behaviour, SimulatedSite, SimulatedTime

TYPES = [GpuType("v100", 0, 0.0, 1.0), GpuType("k80", 0, 0.0, 0.25)]


def machines(*nodes: tuple[str, int]) -> Cluster:
    return Cluster.of([Node(f"n{at}", kind, gpus) for at, (kind, gpus) in enumerate(nodes)], TYPES)


Make = Callable[..., Scheduler]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a scheduler in simulated time with some jobs: GPUs, expected seconds and user of each."""
    made: list[Scheduler] = []

    def one(cluster: Cluster, *jobs: tuple[int, float, str], policy: str = "fifo", config: str = "") -> Scheduler:
        clock, folder = SimulatedTime(), tmp_path / str(len(made))
        folder.mkdir()
        (folder / FILE_NAME).write_text(config)
        settings, site = Settings(folder), SimulatedSite(clock, lambda name: None)
        given = (folder, cluster, make_policy(policy), placement("packed"))
        scheduler = Scheduler(*given, site=site, time=clock, policy_text=policy, min_run_s=0.0, terms=settings)
        settings.govern(scheduler)
        made.append(scheduler)
        scheduler.begin()

        def ask(command: Any) -> Any:
            answer = scheduler.engine.ask(command)
            while not answer.done():
                scheduler.loop.step()
            return answer.result()

        monkeypatch.setattr(scheduler, "ask", ask)
        for gpus, seconds, user in jobs:
            command = Behaviour(work_s=seconds).command()
            answer = scheduler.submission(
                [JobRequest(command=command, gpus=gpus, expected_s=seconds, user=user, preempt="checkpoint")]
            )
            while not answer.done():
                scheduler.loop.step()
        while len(scheduler.state.held_gpus) == 0:
            scheduler.loop.step()
        return scheduler

    yield one
    for scheduler in made:
        scheduler.stop()


def ends(told: dict[str, Any]) -> dict[str, int]:
    return {row["id"]: round(row["finish_in_s"]) for row in told["jobs"] if row["finish_in_s"] is not None}


def test_twice_the_gpus_and_both_sides_for_each_user_and_job(make: Make) -> None:
    scheduler = make(machines(("v100", 2)), (2, 100, "ana"), (2, 100, "ben"), (2, 50, "ben"))
    before = json.dumps([record.plain() for record in scheduler.store])
    told = what_if(scheduler, {"cluster_gpus": 4})
    assert ends(told) == {"1": 100, "2": 100, "3": 150}
    assert [round(row["otherwise"]["finish_in_s"]) for row in told["jobs"]] == [100, 200, 250]
    assert told["cluster_gpus"] == {"v100": 4}
    assert told["otherwise"]["cluster_gpus"] == {"v100": 2}
    users = [
        (row["user"], row["jobs"], round(row["mean_jct_s"]), round(row["otherwise_mean_jct_s"]))
        for row in told["users"]
    ]
    assert users == [("ana", 1, 100, 100), ("ben", 2, 125, 225)]
    json.dumps(told, allow_nan=False)
    assert json.dumps([record.plain() for record in scheduler.store]) == before, "a forecast changes nothing"


def test_the_command_line_shows_both_sides(make: Make) -> None:
    scheduler = make(machines(("v100", 2)), (2, 100, "ana"), (2, 100, "ben"))
    console = Console(width=300, file=io.StringIO())
    with console.capture() as caught:
        console.print(_outlook(what_if(scheduler, {"cluster_gpus": 4, "policy": "srtf"})))
    text = [" ".join(line.split()) for line in caught.get().splitlines()]
    assert "now starts in now ends in difference" in text[0]
    assert "1 min 40 s 3 min 20 s −1 min 40 s" in text[3]
    assert "user jobs mean completion now difference" in text
    assert "ben 1 1 min 40 s 3 min 20 s −1 min 40 s" in text
    assert any(line.startswith("srtf, 4 GPUs: mean completion time 1 min 40 s") for line in text)
    assert any(line.startswith("now (fifo, 2 GPUs): mean completion time 2 min 30 s") for line in text)


def test_fewer_gpus_preempt_the_jobs_there_and_leave_large_ones_without_a_place(make: Make) -> None:
    jobs = ((2, 100, "ana"), (2, 100, "ana"), (4, 10, "ben"), (1, 20, "ana"))
    scheduler = make(machines(("v100", 2), ("v100", 2)), *jobs)
    told = what_if(scheduler, {"cluster_gpus": 2})
    # The second job has saved nothing, begins anew when the first has ended, and pays for its restart.
    assert ends(told)["1"] == 100
    assert ends(told)["2"] == pytest.approx(200, abs=15)
    # A job that cannot run at all keeps nobody waiting.
    assert ends(told)["4"] == pytest.approx(ends(told)["2"] + 20, abs=1)
    large = told["jobs"][2]
    assert large["finish_in_s"] is None
    assert large["why"] == "it needs 4 GPUs; 2 would be there"
    assert large["otherwise"]["finish_in_s"] == pytest.approx(110, abs=1)
    assert told["never_start"] == 1
    assert told["blocked_gpus"] == []
    assert told["note"] == ""
    # Only jobs that end in both forecasts are compared.
    assert told["users"][1] == {
        "user": "ben",
        "jobs": 1,
        "compared": 0,
        "mean_jct_s": None,
        "otherwise_mean_jct_s": None,
    }


def test_a_type_that_is_not_there_has_the_speed_of_the_catalogue(make: Make) -> None:
    scheduler = make(machines(("k80", 1)), (1, 100, "ana"), (1, 100, "ana"))
    told = what_if(scheduler, {"cluster_gpus": {"k80": 1, "v100": 1}, "policy": "srtf"})
    assert told["cluster_gpus"] == {"k80": 1, "v100": 1}
    assert told["problem"] == ""
    # A V100 is several times as fast as a K80.
    assert ends(told)["2"] < 50
    gone = what_if(scheduler, {"cluster_gpus": {"v100": 2}})
    assert gone["cluster_gpus"] == {"v100": 2}
    assert max(ends(gone).values()) < 50


def test_tenants_keep_their_cells_and_others_use_what_is_added(make: Make) -> None:
    config = '[tenants.vision]\ncells = ["1x2"]\nusers = ["ana"]\n'
    jobs = ((2, 100, "ana"), (2, 100, "ana"), (2, 100, "ben"))
    scheduler = make(machines(("v100", 2)), *jobs, config=config)
    assert ends(what_if(scheduler)) == {"1": 100, "2": 200, "3": 300}
    for more in (4, {"v100": 2, "k80": 2}):
        told = what_if(scheduler, {"cluster_gpus": more})
        assert told["problem"] == ""
        assert (ends(told)["1"], ends(told)["2"]) == (100, 200), "ana has reserved two GPUs, and not more"
    assert ends(what_if(scheduler, {"cluster_gpus": 4}))["3"] == 100


def test_a_new_job_that_only_fits_on_more_gpus(make: Make) -> None:
    scheduler = make(machines(("v100", 2)), (1, 100, "ana"))
    new = {"gpus": 4, "expected_s": 60.0}
    with pytest.raises(InputError, match="no GPUs here can ever run this job"):
        what_if(scheduler, {"job": new})
    told = what_if(scheduler, {"job": new, "cluster_gpus": 6})
    assert told["new"][0]["finish_in_s"] == pytest.approx(60, abs=1)
    less = what_if(scheduler, {"job": {"gpus": 2, "expected_s": 60.0}, "cluster_gpus": 1})
    assert less["new"][0]["why"] == "it needs 2 GPUs; 1 would be there"
    assert ends(less) == {"1": 100}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"cluster_gpus": 0}, "cluster_gpus"),
        ({"cluster_gpus": -4}, "cluster_gpus"),
        ({"cluster_gpus": 1.5}, "cluster_gpus"),
        ({"cluster_gpus": "8"}, "cluster_gpus"),
        ({"cluster_gpus": {}}, "cluster_gpus"),
        ({"cluster_gpus": {"v100": 0}}, "the cluster would have no GPUs"),
        ({"cluster_gpus": {"warp9": 3}}, "unknown GPU type 'warp9'"),
        ({"cluster_gpus": {"v100": 1, "V100": 2}}, "given twice"),
    ],
)
def test_nonsense_about_gpus_is_refused(make: Make, body: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        what_if(make(machines(("v100", 2)), (1, 5, "ana")), body)


def test_nodes_that_are_added_are_like_those_that_are_there() -> None:
    cluster = machines(("v100", 4), ("k80", 2))
    larger = other_cluster(cluster, 15)
    assert [(node.gpu_type, node.gpus) for node in larger.cluster.nodes[2:]] == [("v100", 4), ("k80", 2), ("v100", 3)]
    assert larger.cluster.goes_on_from(cluster)
    assert other_cluster(cluster, 3).gone == {3, 4, 5}
    typed = other_cluster(cluster, {"k80": 5, "v100": 2})
    assert typed.gone == {2, 3}
    assert typed.counts() == {"k80": 5, "v100": 2}
    assert other_cluster(cluster, {"a100": 5}).counts() == {"a100": 5}


def test_gpus_as_people_write_them() -> None:
    assert gpu_counts("16") == 16
    assert gpu_counts("V100:8, k80:4") == {"v100": 8, "k80": 4}
    for text in ("", "many", "v100", "v100:", ":4", "v100:-1", "v100:4,v100:2", "-3", "1.5"):
        with pytest.raises(InputError):
            gpu_counts(text)
