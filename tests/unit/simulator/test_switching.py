"""Switches of simulated GPUs: when one is paid, which models stay in memory, and what it does to completion times."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fairway import InputError, JobSpec, Workload, simulate
from fairway.models.switching import POSTER, Switching
from fairway.policies import make_policy
from fairway.simulator.faults import Faults, Outage
from fairway.simulator.result import Result
from fairway.simulator.rules import rules_named
from fairway.simulator.switch_table import file_of, read_switch_table, switching_of
from fairway.simulator.switching import Switches
from fairway.testing import cluster, job
from fairway.testing.seeds import some

GIB = 1024**3
MISS_S, HIT_S = POSTER.median.resident_s, POSTER.median.hit_s
HEAD = "model,restart_ms,pipelined_ms,resident_ms"


def sized(name: str, gib: float, gpus: int = 1) -> JobSpec:
    """A job of an unknown model that needs so much memory: all of it stays when it is resident."""
    return job(name, gpus, memory_bytes=int(gib * GIB))


def switches(how: str = "resident", machines: str = "v100:1x4") -> Switches:
    """V100s with 16 GiB each."""
    return Switches(cluster(machines), switching_of(how))


def told(on: Switches, gpu: int, *jobs: JobSpec) -> list[str]:
    """What the switches to tasks on a GPU are: nothing, a hit or a miss."""
    names = {0.0: "-", HIT_S: "hit", MISS_S: "miss"}
    return [names[on.next_s(gpu, one)] for one in jobs]


A, B, C, D = (sized(name, 4) for name in "ABCD")


def test_a_gpu_without_a_past_is_free_and_tasks_of_one_job_follow_each_other() -> None:
    on = switches()
    assert told(on, 0, A, A, B, B, A) == ["-", "-", "miss", "-", "hit"]
    assert (on.times, on.gpu_s) == (2, MISS_S + HIT_S)


def test_the_oldest_resident_goes_first() -> None:
    on = switches()
    assert told(on, 0, A, B, C, D) == ["-", "miss", "miss", "miss"]
    assert on.resident(0) == ("A", "B", "C")
    assert told(on, 0, A, sized("E", 4)) == ["hit", "miss"]
    assert on.resident(0) == ("C", "D", "A")
    assert told(on, 0, B) == ["miss"]


def test_residents_are_kept_only_as_far_as_they_fit_beside_the_job_that_runs() -> None:
    on = switches()
    told(on, 0, A, B, C, sized("large", 9))
    assert on.resident(0) == ("C",)
    told(on, 0, sized("larger", 13))
    assert on.resident(0) == ()


def test_the_next_job_is_pinned() -> None:
    on = switches()
    told(on, 0, A, B, C)
    on.next_s(0, sized("large", 9), then=A)
    assert on.resident(0) == ("A",)
    on.next_s(0, sized("whole", 16), then=A)
    assert on.resident(0) == ()


def test_a_job_of_unknown_memory_fills_its_gpu() -> None:
    on = switches()
    assert told(on, 0, A, job("unknown"), A, job("unknown")) == ["-", "miss", "miss", "miss"]
    assert on.resident(0) == ()


def test_gpus_of_different_sizes_keep_what_fits() -> None:
    on = switches(machines="k80:1x1,a100:1x1")
    for gpu in (0, 1):
        told(on, gpu, A, B, C, D)
    assert (on.resident(0), on.resident(1)) == (("B", "C"), ("A", "B", "C"))


def test_the_slowest_gpu_of_a_gang_counts() -> None:
    on = switches()
    gang = sized("gang", 4, gpus=2)
    assert on.start_s(gang, (0, 1)) == 0.0
    on.start_s(A, (0,))
    on.start_s(sized("whole", 16), (1,))
    assert on.start_s(gang, (0, 1)) == MISS_S
    assert on.gpu_s == pytest.approx(MISS_S + MISS_S + 2 * MISS_S)
    on.start_s(A, (0,))
    assert on.start_s(gang, (0, 1)) == HIT_S


@pytest.mark.parametrize("how", ["pipelined", "resident", "5s"])
def test_a_job_goes_on_at_once_where_nobody_was_since(how: str) -> None:
    on = switches(how)
    assert [on.start_s(A, (0, 1)), on.start_s(A, (0, 1)), on.times] == [0.0, 0.0, 0]


def test_a_restart_ends_the_process() -> None:
    on = switches("restart")
    assert [on.start_s(A, (0,)), on.start_s(A, (0,))] == [0.0, POSTER.median.restart_s]


@pytest.mark.parametrize("how", ["restart", "pipelined", "resident", "5s"])
def test_every_method_charges_the_same_starts(how: str) -> None:
    """The first start on a used GPU, a move to an unused one, and the way back."""
    on, cost_s = switches(how), switching_of(how).typical_s
    starts = [on.start_s(A, (0,)), on.start_s(B, (0,)), on.start_s(B, (1,)), on.start_s(B, (0,))]
    assert starts == [0.0, cost_s, cost_s, cost_s]


def test_what_a_job_left_on_other_gpus_is_out_of_date_when_it_starts_elsewhere() -> None:
    on = switches()
    on.start_s(A, (0,))
    on.start_s(B, (0,))
    on.start_s(A, (1,))
    assert on.resident(0) == ()
    assert on.start_s(A, (0,)) == MISS_S


def test_a_shrunk_gang_goes_on_and_a_grown_one_pays_for_its_new_gpus() -> None:
    on = switches("pipelined")
    cost_s = POSTER.median.pipelined_s
    assert [on.start_s(A, gpus) for gpus in ((0, 1), (0,), (0, 1))] == [0.0, 0.0, cost_s]


def test_a_failed_node_keeps_nothing() -> None:
    on = switches()
    told(on, 0, A, B, C)
    on.forget(0)
    assert on.resident(0) == ()
    assert told(on, 0, D, A) == ["-", "miss"]


def test_a_job_that_falls_back_to_a_checkpoint_has_no_state_left() -> None:
    on = switches()
    on.start_s(A, (0, 1))
    on.lose(A)
    assert on.start_s(A, (0, 1)) == MISS_S


def test_a_job_that_has_ended_takes_no_memory() -> None:
    on = switches()
    told(on, 0, A, B, C, D)
    on.ended(B)
    assert on.resident(0) == ("A", "C")
    on.ended(D)
    assert told(on, 0, sized("E", 8)) == ["miss"]
    assert on.resident(0) == ("A", "C")


def test_jobs_beside_the_one_that_starts_take_memory_too() -> None:
    on = switches()
    told(on, 0, A, B, C)
    on.start_s(D, (0,), beside=[C])
    assert on.resident(0) == ("A", "B")
    on.start_s(sized("E", 8), (0,), beside=[C])
    assert on.resident(0) == ("D",)


@pytest.mark.parametrize("seed", range(5))
def test_residents_never_exceed_the_memory_beside_the_job_that_runs(seed: int) -> None:
    """Random tasks, starts, ends and failures. A hit is always a job that was resident before."""
    rng, on = random.Random(seed), switches(machines="v100:1x2,k80:1x2")
    jobs = {name: sized(name, rng.choice((1, 2, 3, 5, 8, 11))) for name in "ABCDEFGHIJ"}
    memory = [16, 16, 12, 12]
    for _ in range(500):
        one, gpu = rng.choice(list(jobs.values())), rng.randrange(4)
        before = on.resident(gpu)
        match rng.randrange(10):
            case 0:
                on.ended(one)
                assert all(one.id not in on.resident(each) for each in range(4))
                continue
            case 1:
                on.forget(gpu)
                assert on.resident(gpu) == ()
                continue
            case 2 | 3:
                cost_s = on.start_s(one, (gpu,))
            case _:
                cost_s = on.next_s(gpu, one, then=rng.choice(list(jobs.values())))
        assert (cost_s == HIT_S) == (one.id in before)
        assert one.id not in on.resident(gpu)
        held = sum(jobs[name].memory_bytes for name in on.resident(gpu)) + one.memory_bytes
        assert held <= memory[gpu] * GIB


def run(*jobs: JobSpec, machines: str = "v100:4", policy: Any = "srtf", **about: Any) -> Result:
    return simulate(Workload.of(list(jobs)), cluster=machines, policy=policy, **about)


def test_every_start_in_a_simulation_pays_its_switch() -> None:
    """The second job takes the GPUs of the first one, which comes back after it."""
    long, short = job("long", 4, 1000.0), job("short", 4, 10.0, submitted_s=100.0)
    result = run(long, short, switching="5s")
    assert result.finished_s.tolist() == [1020.0, 115.0]
    figures = result.figures()
    assert (figures["switching"], figures["switches"]) == ("5s", 2)
    assert figures["switching_gpu_h"] * 3600 == pytest.approx(4 * 10.0)
    assert figures["lost_gpu_h"] == pytest.approx(figures["switching_gpu_h"])
    assert figures["restart_cost_s"] == 5.0


def test_without_switching_nothing_is_said_about_it() -> None:
    assert not {"switching", "switches", "switching_gpu_h", "min_run_s"} & set(run(job("a")).figures())


def test_a_failed_node_makes_its_jobs_pay_again() -> None:
    """The job loses what it did since its last checkpoint, none as yet, and starts again when the node is back."""
    outage = Faults((Outage(100.0, 0, 50.0),))
    result = run(job("a", 4, 300.0), machines="v100:1x4", switching="5s", faults=outage)
    assert result.finished_s.tolist() == [100.0 + 50.0 + 5.0 + 300.0]


class Watch:
    """A policy that notes the restart costs that it is told."""

    def __init__(self) -> None:
        self._inner = make_policy("fifo")
        self.name, self.knows, self.round_s = "watch", self._inner.knows, self._inner.round_s
        self.seen: list[list[float]] = []

    def decide(self, snapshot: Any) -> Any:
        self.seen.append(snapshot.restart_s.tolist())
        return self._inner.decide(snapshot)


@pytest.mark.parametrize(("how", "at"), [("restart", 0), ("pipelined", 1), ("resident", 2)])
def test_policies_are_told_what_a_switch_costs(how: str, at: int) -> None:
    watch = Watch()
    run(job("a", model="VGG19"), job("b"), policy=watch, switching=how)
    assert watch.seen[0] == [POSTER.rows["VGG19"][at], POSTER.median[at]]


def trace(seed: int) -> Workload:
    rng = random.Random(seed)
    models = ("ResNet-50", "VGG19", "BERT-base", "Transformer", "DeepSpeech2", "LSTM", "ResNet-18")
    jobs, now_s = [], 0.0
    for number in range(40):
        now_s += rng.expovariate(1 / 120)
        gang, run_s, model = rng.choice((1, 1, 1, 2, 4)), rng.lognormvariate(7.2, 1), rng.choice(models)
        jobs.append(job(str(number), gang, run_s, now_s, model=model))
    return Workload.of(jobs)


@pytest.mark.parametrize(("policy", "seeds"), some([("tiresias", 4), ("shockwave", 1), ("gandiva", 1), ("las", 4)], 2))
def test_dearer_switches_make_jobs_take_longer(policy: str, seeds: int) -> None:
    """Restarts cost 3.3 to 9 s here, so they are about as dear as 5 s each."""
    means = []
    for how in ("0", "resident", "5ms", "5s", "30s"):
        runs = [simulate(trace(seed), cluster="v100:2x4", policy=policy, switching=how) for seed in range(seeds)]
        means.append(sum(result.mean_jct_s or 0.0 for result in runs) / seeds)
    assert means == sorted(set(means))
    restarts = [simulate(trace(seed), cluster="v100:2x4", policy=policy, switching="restart") for seed in range(seeds)]
    assert means[2] < sum(result.mean_jct_s or 0.0 for result in restarts) / seeds < means[4]


@pytest.mark.parametrize("rules", ["gavel", "shockwave"])
def test_rules_that_charge_by_rounds_have_no_switching(rules: str) -> None:
    with pytest.raises(InputError, match=f"the {rules} rules charge by rounds"):
        run(job("a"), rules=rules, switching="5ms")


def test_switching_replaces_the_restart_costs_of_applications() -> None:
    result = run(job("a", dataset="bert"), rules="sia", switching="5s")
    assert result.figures()["restart_cost_s"] == 5.0
    with pytest.raises(InputError, match="not both"):
        run(job("a"), switching="5s", restart_cost_s=3.0)


def test_protection_of_fresh_starts_can_be_lowered() -> None:
    long, short = job("long", 4, 1000.0), job("short", 4, 10.0, submitted_s=5.0)
    assert rules_named("native").min_run_s == 60.0
    assert run(long, short, switching="0").finished_s.tolist() == [1010.0, 70.0]
    result = run(long, short, switching="0", min_run_s=0.0)
    assert result.finished_s.tolist() == [1010.0, 15.0]
    assert result.figures()["min_run_s"] == 0.0


def test_how_is_a_method_a_file_or_a_time(tmp_path: Path) -> None:
    assert switching_of("5ms").fixed_s == 0.005
    assert switching_of("0").cost_s(job()) == 0.0
    assert switching_of("5s") == Switching.fixed(5.0, "5s")
    path = tmp_path / "a:b.csv"
    path.write_text(f"{HEAD},resident_hit_ms,bytes\nMy Net,4000,8,4,1,12000000\nOther,6000,10,5,,\n")
    how = switching_of(f"resident:{path}")
    assert (how.cost_s(job(model="my-net")), how.hit_s(job(model="my-net"))) == (0.004, 0.001)
    assert how.hit_s(job(model="Other")) == 0.004
    assert how.cost_s(job(model="VGG19")) != POSTER.rows["VGG19"].resident_s
    assert file_of(f"resident:{path}") == str(path)
    assert file_of("resident") is file_of("5ms") is None


@pytest.mark.parametrize("how", ["", "x", "-5s", "5 parsecs", "5ms:times.csv", "Restart", "restart ", "1e9999"])
def test_any_other_how_is_one_line_with_what_is_known(how: str) -> None:
    with pytest.raises(InputError, match=r"unknown switching .*; known: restart, pipelined, resident"):
        switching_of(how)
    with pytest.raises(InputError, match="cannot take longer"):
        switching_of("9999999w")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        (f"{HEAD}\n", "no rows"),
        ("model,restart_ms\nA,1\n", "column pipelined_ms, resident_ms is missing"),
        (f"{HEAD}\nA,1,2\n", ":2: expected 4 columns"),
        (f"{HEAD}\n,1,2,3\n", ":2: model is empty"),
        (f"{HEAD}\nA,1,2,3\nA,1,2,3\n", ":3: model 'A' comes twice"),
        (f"{HEAD}\nA,1,x,3\n", ":2: pipelined_ms 'x' is not a finite number"),
        (f"{HEAD}\nA,1,-2,3\n", ":2: pipelined_ms '-2' is less than 0"),
        (f"{HEAD}\nA,1,0,3\n", ":2: pipelined_ms '0' is not a number above 0"),
        (f"{HEAD}\nA,1e300,2,3\n", ":2: restart_ms '1e300' is not a number above 0"),
        (f"{HEAD},resident_hit_ms\nA,1,2,3,4\n", ":2: resident_hit_ms 4 is more than resident_ms 3"),
        (f"{HEAD},bytes\nA,1,2,3,1.5\n", ":2: bytes '1.5' is not a whole number"),
    ],
)
def test_a_bad_table_is_one_line_that_names_it(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"times\.csv") as failed:
        read_switch_table(str(path))
    assert what in str(failed.value)
