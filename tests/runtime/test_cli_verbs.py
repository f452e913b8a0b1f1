"""Every verb against a real scheduler on virtual GPUs."""

from __future__ import annotations

import json
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_cli import LiveCli, until


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCli]:
    cli = LiveCli(tmp_path_factory.mktemp("cli"))
    first = cli.start("--gpus", "4", "--policy", "fifo")
    assert "4 × cpu" in first
    yield cli
    cli.close()


def python(text: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-u", "-c", text)


def test_a_job_is_submitted_runs_and_is_told_about(cli: LiveCli) -> None:
    job = cli.submit("--name", "hello", "--", "bash", "-c", "echo out; echo err >&2; pwd")
    told = cli.wait_for(job, "COMPLETED")
    assert (told["name"], told["exit_code"], told["request"]["cwd"]) == ("hello", 0, str(cli.folder))
    assert cli("logs", job).out == f"out\nerr\n{cli.folder}\n"
    assert job in [row["id"] for row in cli("ls", "--all", "--json").json]
    assert job not in [row["id"] for row in cli("ls", "--json").json]
    assert cli("history", "--json").json[0]["state"]
    for words in (("show", job), ("ls", "--all"), ("history",), ("why", job)):
        call = cli(*words)
        assert (call.code, call.err) == (0, "")
        assert "hello" in call.out or "COMPLETED" in call.out


def test_run_shows_all_ranks_and_ends_with_the_code_of_the_job(cli: LiveCli) -> None:
    call = cli("run", "--gpus", "2", "--per-gpu", "--", "bash", "-c", "echo $RANK/$WORLD_SIZE; sleep 0.3; exit 7")
    assert call.code == 7
    assert sorted(call.out.splitlines()) == ["[0] 0/2", "[1] 1/2"]
    assert "exited with code 7" in call.err
    assert cli("run", "--", "true").code == 0


def test_run_passes_words_on_as_they_are(cli: LiveCli) -> None:
    words = ["$HOME", "a b", "--gpus", "*", "; rm -rf x", "`id`", "\n", "ü"]
    call = cli("run", "--", sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(call.out) == words


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_stopping_run_cancels_the_job(cli: LiveCli, signo: signal.Signals) -> None:
    process = cli.popen("run", "--grace", "5", "--name", f"run-{signo}", "--", "bash", "-c", "echo here; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signo)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signo
    (row,) = [row for row in cli("ls", "--all", "--json").json if row["name"] == f"run-{signo}"]
    assert row["state"] == "CANCELLED"


def test_following_goes_on_until_the_end(cli: LiveCli) -> None:
    job = cli.submit("--", "bash", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done")
    call = cli("logs", job, "-f")
    assert (call.code, call.out) == (0, "1\n2\n3\n")
    assert cli("logs", job, "--tail", "1").out == "3\n"


def test_arrays_have_tasks_and_run_so_many_at_a_time(cli: LiveCli) -> None:
    script = (
        "echo $FAIRWAY_ARRAY_TASK_ID >> order; ls running-* 2>/dev/null | wc -l >> crowd; "
        "touch running-$$; sleep 0.5; rm running-$$"
    )
    job = cli.submit("--array", "3-9:2%1", "--", "bash", "-c", script)
    waiting = [row for row in cli.show(job)["tasks"] if "at a time" in row["reason"]]
    assert waiting
    until(lambda: {row["state"] for row in cli.show(job)["tasks"]} == {"COMPLETED"}, "the array to end")
    assert (cli.folder / "order").read_text().split() == ["3", "5", "7", "9"]
    assert set((cli.folder / "crowd").read_text().split()) == {"0"}
    assert cli("logs", f"{job}_5").code == 0
    assert cli("logs", job).code == 2


def test_dependencies(cli: LiveCli) -> None:
    first = cli.submit("--hold", "--", "true")
    second = cli.submit("--depends", f"afterok:{first}", "--", "true")
    assert "waits for job" in cli.show(second)["reason"]
    assert "held" in cli("why", first).out
    assert cli("release", first).code == 0
    cli.wait_for(second, "COMPLETED")


def test_a_job_may_wait_for_a_whole_array(cli: LiveCli) -> None:
    array = cli.submit("--array", "0-2", "--", "sleep", "0.2")
    after = cli.submit("--depends", f"afterok:{array}", "--", "true")
    cli.wait_for(after, "COMPLETED")
    assert {row["state"] for row in cli.show(array)["tasks"]} == {"COMPLETED"}


def test_suspend_resume_hold_release_requeue_update_cancel(cli: LiveCli) -> None:
    job = cli.submit("--gpus", "1", "--grace", "1", "--", "sleep", "100")
    cli.wait_for(job, "RUNNING")
    assert "SUSPENDED" in cli("suspend", job).out
    assert cli.show(job)["state"] == "SUSPENDED"
    assert cli("resume", job).code == 0
    cli.wait_for(job, "RUNNING")
    assert cli("requeue", job, "--json").json[0]["id"] == job
    until(lambda: cli.show(job)["attempts"] == 2 and cli.show(job)["state"] == "RUNNING", "the second attempt")
    assert cli("update", job, "--priority", "5", "--time", "2h", "--name", "other").code == 0
    told = cli.show(job)
    assert (told["priority"], told["request"]["limit_s"], told["name"]) == (5, 7200.0, "other")
    assert cli("update", job, "--time", "none").code == 0
    assert "limit_s" not in cli.show(job)["request"]
    assert cli("cancel", job).out == f"job {job} CANCELLED; its processes have up to 1.0 s to stop\n"


def test_several_jobs_at_once_and_one_that_is_not_there(cli: LiveCli) -> None:
    jobs = [cli.submit("--hold", "--", "true") for _ in range(2)]
    call = cli("cancel", jobs[0], "9999999", jobs[1])
    assert call.code == 4
    assert [cli.show(job)["state"] for job in jobs] == ["CANCELLED", "CANCELLED"]
    assert call.err == "fairway: error: there is no job '9999999'\n"


def test_why_and_what_if(cli: LiveCli) -> None:
    first = cli.submit("--gpus", "4", "--expect", "1h", "--", "sleep", "100")
    cli.wait_for(first, "RUNNING")
    second = cli.submit("--gpus", "1", "--expect", "2h", "--", "sleep", "100")
    told = cli("why", second, "--json").json
    assert (told["state"], told["position"]) == ("PENDING", 1)
    assert first in cli("why", second).out
    seen = cli("what-if", second, "--json").json["jobs"][0]
    assert seen["start_in_s"] == pytest.approx(3600, abs=60)
    new = cli("what-if", "--gpus", "2", "--expect", "30m", "--json").json["new"][0]
    assert new["start_in_s"] == pytest.approx(3600, abs=60)
    for words in ((), (second,), ("--policy", "srtf"), ("--gpus", "1", "--array", "0-3")):
        call = cli("what-if", *words)
        assert (call.code, call.err) == (0, "")
    more = cli("what-if", second, "--cluster-gpus", "8", "--json").json["jobs"][0]
    assert more["start_in_s"] < 60 < more["otherwise"]["start_in_s"]
    assert cli("cancel", first, second).code == 0
    past = cli("compare", "--history", "1h", "fifo", "--json", "-").json
    assert "actual" in past["rows"][0]["policy"]
    assert past["rows"][0]["finished"] == past["rows"][1]["finished"] >= 1


def test_the_cluster_is_shown(cli: LiveCli) -> None:
    assert [len(node["gpus"]) for node in cli("nodes", "--json").json] == [4]
    cli.wait_for(cli.submit("--", "sleep", "0.1"), "COMPLETED")
    assert cli("share", "--json").json[0]["gpu_s"] > 0
    assert cli("status", "--json").json["gpus"] == 4
    assert set(cli("top", "--json").json) == {"status", "nodes", "jobs"}
    for verb in ("nodes", "share", "status"):
        assert cli(verb).code == 0
    assert "GPUs held" in cli("top", "--once").out


def test_the_policy_is_changed_while_jobs_run(cli: LiveCli) -> None:
    job = cli.submit("--", "sleep", "100")
    cli.wait_for(job, "RUNNING")
    assert cli("policy", "set", "las:levels=5").out == "las:levels=5 decides now\n"
    assert cli("policy", "--json").json["policy"] == "las:levels=5"
    assert cli("policy", "set", "nonsense").code == 2
    assert cli.show(job)["state"] == "RUNNING"
    assert cli("policy", "set", "fifo", "--json").json["name"] == "fifo"
    assert cli("cancel", job).code == 0


def test_an_sbatch_script_runs_unchanged(cli: LiveCli) -> None:
    script = cli.folder / "train.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --job-name=batch\n#SBATCH --gpus=2\n#SBATCH --mem=4G\n#SBATCH --output=%x-%j.out\n"
        '#SBATCH --time=10\necho "$1 $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_GPUS_ON_NODE $SLURM_JOB_NUM_NODES"\n'
    )
    call = cli("submit", "--parsable", "train.sbatch", "argument")
    job = call.out.strip()
    assert call.err == "" or "fairway: note: the limit of memory is not kept here" in call.err
    told = cli.wait_for(job, "COMPLETED")
    assert told["request"]["limit_s"] == 600
    assert (cli.folder / f"batch-{job}.out").read_text() == f"argument {job} batch 2 1\n"
    assert told["command"] == "train.sbatch argument"
    assert "train.sbatch argument" in cli("ls", "--all").out
    for words in (("ls", "--all"), ("show", job), ("history",)):
        assert "FAIRWAY_OUTPUT" not in cli(*words).out, "the wrapper is not shown"


def test_an_sbatch_script_from_a_pipe(cli: LiveCli) -> None:
    call = cli("submit", "--parsable", "-", given="#!/bin/bash\n#SBATCH --gpus=1 -J piped\necho $0\n")
    assert cli.wait_for(call.out.strip(), "COMPLETED")["name"] == "piped"


def test_a_skypilot_task_runs(cli: LiveCli) -> None:
    (cli.folder / "task.yaml").write_text(
        "name: sky\nresources: {cloud: aws}\nenvs: {GREETING: hi, WHO: null}\n"
        "setup: echo setup\nrun: echo $GREETING $WHO\n"
    )
    call = cli("submit", "--parsable", "--env", "WHO=you", "task.yaml")
    cli.wait_for(call.out.strip(), "COMPLETED")
    assert cli("logs", call.out.strip()).out == "setup\nhi you\n"


def test_torchrun_becomes_ranks(cli: LiveCli) -> None:
    (cli.folder / "torchrun_job.py").write_text("import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])\n")
    call = cli("run", "--", "torchrun", "--standalone", "--nproc-per-node=2", "torchrun_job.py")
    assert (call.code, sorted(call.out.splitlines())) == (0, ["[0] 0 2", "[1] 1 2"])


def test_a_function_is_hosted_by_an_executor(cli: LiveCli) -> None:
    text = (
        "class Job:\n    steps = 3\n    def step(self):\n        print('a step')\ndef make(name):\n    return Job()\n"
    )
    (cli.folder / "hosted_here.py").write_text(text)
    env = ("--env", "FAIRWAY_EXECUTOR_IDLE_S=0.5", "--env", f"PATH={Path(sys.executable).parent}:/usr/bin:/bin")
    call = cli("run", "--executor", "hosted_here:make", *env, "--", "x")
    assert (call.code, call.out) == (0, "a step\n" * 3)
    job = cli("ls", "--all", "--json").json[-1]["id"]
    assert "hosted_here:make x" in cli("show", job).out
    assert cli("run", "--executor", "hosted_here:nothing", *env).code == 1


def test_a_job_may_draw_on_a_terminal(cli: LiveCli) -> None:
    text = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())"
    assert cli("run", "--tty", *python(text)).out == "False True True\n"
    assert cli("run", *python(text)).out == "False False False\n"


def test_the_same_key_is_the_same_job(cli: LiveCli) -> None:
    assert cli.submit("--key", "once", "--", "true") == cli.submit("--key", "once", "--", "true")


def test_what_goes_along_from_the_environment(cli: LiveCli) -> None:
    cli.env |= {"SECRET": "s3cret", "VIRTUAL_ENV": "/venv", "RANK": "5"}
    text = "import os; print(*map(os.environ.get, ('SECRET', 'VIRTUAL_ENV', 'A', 'RANK')))"
    assert cli("run", "--env", "A=1", *python(text)).out == "s3cret /venv 1 None\n"
    assert cli("run", "--export", "ALL,RANK,A=2", *python(text)).out == "s3cret /venv 2 5\n"
    assert cli("run", "--export", "SECRET", *python(text)).out == "s3cret None None None\n"
    job = cli("ls", "--all", "--json").json[-1]["id"]
    assert cli("show", job, "--json").json["request"]["env"] == {"SECRET": "********"}
    assert "s3cret" not in (cli.state / "audit.jsonl").read_text()
    holding = [path for path in cli.state.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert {path.name for path in holding} >= {"launch.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding if path.name != "rank-0.log"} == {0o600}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("submit",), 2),
        (("submit", "--gpus", "x", "--", "true"), 2),
        (("submit", "--gpus", "0", "--", "true"), 2),
        (("submit", "--gpus", "5", "--", "true"), 2),
        (("submit", "--time", "soon", "--", "true"), 2),
        (("submit", "--begin", "25:00", "--", "true"), 2),
        (("submit", "--type", "h100", "--", "true"), 2),
        (("submit", "--array", "9-1", "--", "true"), 2),
        (("submit", "--depends", "afterok:9999999", "--", "true"), 2),
        (("submit", "--depends", "sometime:1", "--", "true"), 2),
        (("submit", "--preempt", "gently", "--", "true"), 2),
        (("submit", "--gpus", "1-2", "--preempt", "suspend", "--", "true"), 2),
        (("submit", "--env", "NOVALUE", "--", "true"), 2),
        (("submit", "--name", "../x", "--", "true"), 2),
        (("submit", "--retries", "-1", "--", "true"), 2),
        (("submit", "--type", "b9000", "--", "true"), 2),
        (("submit", "--deadline", "2001-01-01", "--", "true"), 2),
        (("submit", "missing.yaml"), 2),
        (("submit", "missing.sbatch"), 2),
        (("submit", "--", "torchrun", "--nproc-per-node=gpu", "x.py"), 2),
        (("run", "--array", "0-3", "--", "true"), 2),
        (("show", "9999999"), 4),
        (("show", "../../etc"), 4),
        (("logs", "9999999"), 4),
        (("logs", "9999999", "-f"), 4),
        (("cancel", "9999999"), 4),
        (("why", "9999999"), 4),
        (("what-if", "9999999"), 4),
        (("what-if", "--policy", "nonsense"), 2),
        (("ls", "-s", "asleep"), 2),
        (("update", "1"), 2),
        (("hold",), 2),
        (("top", "--every", "0"), 2),
        (("salvage", "missing.db", "new.db"), 2),
    ],
)
def test_bad_input_is_one_line_and_the_right_code(cli: LiveCli, words: tuple[str, ...], code: int) -> None:
    before = len(cli("ls", "--all", "--json").json)
    call = cli(*words)
    assert (call.code, call.out) == (code, "")
    assert call.err.startswith("fairway: error: ")
    assert call.err.count("\n") == 1
    assert len(cli("ls", "--all", "--json").json) == before


def test_holding_a_running_job_says_that_it_goes_on(cli: LiveCli) -> None:
    job = cli.submit("--grace", "1", "--", "sleep", "100")
    cli.wait_for(job, "RUNNING")
    assert cli("hold", job).out.startswith(f"job {job} RUNNING: held; it keeps running")
    assert cli("release", job).out == f"job {job} RUNNING\n"
    assert cli("cancel", job).code == 0


def test_a_list_says_why_jobs_wait(cli: LiveCli) -> None:
    first = cli.submit("--gpus", "4", "--", "sleep", "100")
    cli.wait_for(first, "RUNNING")
    second = cli.submit("--gpus", "3", "--", "sleep", "100")
    until(lambda: "needs 3 GPUs, 0 free" in cli("ls").out, "the reason")
    assert cli("cancel", first, second).code == 0


def test_a_log_that_is_not_there_is_told_from_an_empty_one(cli: LiveCli) -> None:
    waiting = cli.submit("--hold", "--", "true")
    call = cli("logs", waiting)
    assert (call.code, call.err) == (0, f"fairway: note: job {waiting} is PENDING and has not been started\n")
    for words in (("--rank", "1"), ("--attempt", "2"), ("--rank", "1", "-f")):
        call = cli("logs", waiting, *words)
        assert (call.code, call.err.count("\n")) == (2, 1)
        assert "there is no" in call.err
    assert cli("cancel", waiting).code == 0


def test_what_has_ended_cannot_be_held(cli: LiveCli) -> None:
    job = cli.submit("--", "true")
    cli.wait_for(job, "COMPLETED")
    call = cli("cancel", job)
    assert (call.code, call.out) == (0, f"job {job} had ended already: COMPLETED\n")
    assert cli("hold", job).code == 5
    assert cli("suspend", job).code == 5


def test_tcp_with_a_token(tmp_path: Path) -> None:
    cli = LiveCli(tmp_path)
    try:
        cli.start("--gpus", "1", "--listen", "127.0.0.1:0")
        told = json.loads((cli.state / "daemon.json").read_text())
        url = f"http://{told['listen']}"
        cli.env.pop("FAIRWAY_STATE")
        cli.env["HOME"] = str(tmp_path / "nobody")
        assert cli("status", "--url", url).code == 5
        cli.env["FAIRWAY_TOKEN"] = (cli.state / "token").read_text().strip()
        assert cli("status", "--url", url, "--json").json["gpus"] == 1
    finally:
        cli.close()


def test_what_has_ended_is_exported_and_deleted(cli: LiveCli) -> None:
    job = cli.submit("--", "true")
    cli.wait_for(job, "COMPLETED")
    file = cli.folder / "all.jsonl"
    call = cli("history", "--export", str(file))
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert (call.code, call.out) == (0, f"{len(lines):,} jobs written to {file}\n")
    assert job in [line["id"] for line in lines]
    count = len(cli("history", "--json", "--limit", "1000").json)
    assert cli("gc").out == "0 jobs deleted\n"
    assert cli("gc", "--keep", "1", "--dry-run", "--json").json["jobs"] == count - 1
    assert cli("gc", "--keep", "0").out == f"{count:,} jobs deleted\n"
    assert cli("history").out == "no jobs\n"
    assert cli("show", job).code == 4
    assert int(cli.submit("--hold", "--", "true")) > int(job)
    assert cli("gc", "--older", "soon").code == 2
