"""Every view of the page shows what the scheduler knows, and follows it without being asked."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from browsing import Open, row, said, show
from live_cli import LiveCli, until

TRAINING = """
import json, os, sys, time
with open(os.environ["FAIRWAY_REPORT"], "a") as file:
    for step in range(1, 10_000):
        report = {"step": step, "steps": 10_000, "loss": 3 / step, "batch_size": 32, "time_s": time.time()}
        file.write(json.dumps(report) + "\\n")
        file.flush()
        print(f"at step {step}", flush=True)
        time.sleep(0.25)
"""


def trained(cli: LiveCli, *options: str) -> str:
    """A job that reports."""
    script = cli.folder / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    return cli.submit(*options, "--", "python3", str(script))


def sleeper(cli: LiveCli, *options: str) -> str:
    return cli.submit(*options, "--", "sleep", "1000")


def clear(cli: LiveCli, *jobs: str) -> None:
    for job in jobs:
        assert cli("cancel", job).code == 0


def column(page: Any, key: str) -> list[str]:
    """What a column of the queue says, in the order of the rows."""
    rows = page.locator(".row[data-job]:visible").evaluate_all(
        f"rows => rows.map(r => [r.getBoundingClientRect().top, r.querySelector('.c-{key}').textContent])"
    )
    return [text for _, text in sorted(rows)]


def busy(route: Any) -> None:
    """Answer for nodes as if their GPUs were real."""
    answer = route.fetch()
    told = answer.json()
    for node in told["nodes"]:
        node["memory_bytes"] = 16 << 30
        for gpu in node["gpus"]:
            assert (gpu["utilisation"], gpu["memory_used_bytes"]) == (None, None)
            gpu |= {"utilisation": 0.73, "memory_used_bytes": 3 << 29}
    route.fulfill(response=answer, json=told)


def test_the_queue_follows_jobs_and_says_why_and_when_they_start(cli: LiveCli, open_page: Open) -> None:
    page = open_page()
    first = sleeper(cli, "--gpus", "4", "--name", "first", "--expect", "10m")
    row(page, first).and_(page.locator("[data-state=RUNNING]")).wait_for()
    second = sleeper(cli, "--gpus", "2", "--name", "second")
    waiting = row(page, second).and_(page.locator("[data-state=PENDING]"))
    waiting.wait_for()
    # The forecast says when, the scheduler why.
    waiting.locator(".c-when", has_text=re.compile("starts.*rough")).wait_for()
    waiting.locator(".c-why", has_text="GPU").wait_for()
    clear(cli, first)
    row(page, second).and_(page.locator("[data-state=RUNNING]")).wait_for()
    row(page, first).and_(page.locator("[data-state=CANCELLED]")).wait_for()
    clear(cli, second)


def test_columns_that_nobody_fills_are_left_out(cli: LiveCli, open_page: Open) -> None:
    job = sleeper(cli, "--hold", "--name", "plain")
    page = open_page()
    row(page, job).wait_for()
    heads = page.locator(".head [data-sort=priority]")
    heads.wait_for(state="hidden")
    assert not row(page, job).locator(".c-priority").is_visible()
    assert cli("update", job, "--priority", "3").code == 0
    heads.wait_for(state="visible")
    row(page, job).locator(".c-priority", has_text="3").wait_for()
    clear(cli, job)


def test_the_queue_is_searched_filtered_and_sorted(cli: LiveCli, open_page: Open) -> None:
    jobs = [
        sleeper(cli, "--hold", "--name", name, "--gpus", gpus) for name, gpus in (("b", "3"), ("c", "1"), ("a", "2"))
    ]
    page = open_page()
    page.locator("[data-group=waiting]").click()
    row(page, jobs[2]).wait_for()
    page.locator("button[data-sort=name]").click()
    until(lambda: column(page, "name") == ["a", "b", "c"], "the names in order")
    page.locator("button[data-sort=gpus]").click()
    until(lambda: column(page, "gpus") == ["1", "2", "3"], "the GPUs in order")
    page.locator("button[data-sort=gpus]").click()
    until(lambda: column(page, "gpus") == ["3", "2", "1"], "the GPUs in falling order")
    page.keyboard.press("/")
    page.keyboard.type(jobs[1])
    page.keyboard.type(" sleep")
    until(lambda: column(page, "id") == [jobs[1]], "the job that was searched for")
    page.reload()
    until(lambda: column(page, "id") == [jobs[1]], "the same list after a reload")
    page.locator("input[type=search]").fill("")
    page.locator("[data-filter=state]").select_option("RUNNING")
    page.locator("text=No job matches").wait_for()
    clear(cli, *jobs)


def test_keys_do_what_the_list_of_keys_says(cli: LiveCli, open_page: Open) -> None:
    jobs = [sleeper(cli, "--hold", "--name", name) for name in ("one", "two")]
    page = open_page()
    page.locator("[data-group=waiting]").click()
    row(page, jobs[1]).wait_for()
    page.locator("[role=grid]").focus()
    page.keyboard.press("j")
    page.locator(".row.picked").wait_for()
    page.keyboard.press("j")
    picked = page.locator(".row.picked").get_attribute("data-job")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-view=job]")
    assert page.url.endswith(f"#/job/{picked}")
    page.keyboard.press("?")
    page.locator("dialog[open]", has_text="search").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_selector("[data-view=cluster]")
    page.keyboard.press("/")
    page.wait_for_selector("[data-view=queue] input[type=search]:focus")
    clear(cli, *jobs)


def test_the_cluster_shows_who_is_where_up_to_now_and_beyond(cli: LiveCli, open_page: Open) -> None:
    first = sleeper(cli, "--gpus", "3", "--name", "wide", "--expect", "10m")
    halves = [sleeper(cli, "--gpus", "0.5", "--name", f"half{at}", "--expect", "10m") for at in range(2)]
    later = sleeper(cli, "--gpus", "4", "--name", "later", "--expect", "10m")
    page = open_page("cluster")
    page.locator(f".lane[data-job='{first}']").nth(2).wait_for()
    # Two jobs share the fourth GPU: two lanes of one cell.
    for job in halves:
        page.locator("[data-gpu='3']").locator(f".lane[data-job='{job}']").wait_for()
    page.locator("canvas").first.wait_for()
    page.locator("summary", has_text="As a table").click()
    table = page.locator("details[open] table")
    table.locator("tr", has_text="wide").first.wait_for()
    # The forecast is in the same picture: the next job of a GPU.
    table.locator("td", has_text=f"{later} at").first.wait_for()
    # Virtual GPUs do not say how busy they are. Real ones would.
    assert page.locator(".meter[aria-label^=utilisation]").count() == 0
    page.route("**/v1/nodes", busy)
    clear(cli, later)
    page.locator("[data-gpu='3'] .meter[aria-label='utilisation 73 %']").wait_for()
    page.locator("[data-gpu='3'] .meter[aria-label='memory 1.5 GiB of 16 GiB']").wait_for()
    clear(cli, first, *halves)


def test_a_job_has_its_log_curves_events_and_reason(cli: LiveCli, open_page: Open) -> None:
    job = trained(cli, "--gpus", "1", "--name", "training")
    page = open_page(f"job/{job}")
    log = page.locator("pre.log")
    log.get_by_text("at step 1\n").first.wait_for()
    seen = log.inner_text().count("\n")
    until(lambda: log.inner_text().count("\n") > seen + 3, "the log to go on")
    page.locator("figure[data-curve=loss] path.line").wait_for(state="attached")
    page.locator("[data-view=job]", has_text="submitted by").wait_for()
    page.locator("[data-view=job]", has_text="started on GPU").wait_for()
    page.locator("[role=progressbar]").wait_for()
    # Who reads what was is not taken to the end. There is something to scroll once it has written enough.
    until(lambda: log.evaluate("log => log.scrollHeight > log.clientHeight + 60"), "more lines than fit")
    log.evaluate("log => { log.scrollTop = 0; }")
    page.locator("button", has_text="Latest").wait_for()
    before = log.evaluate("log => log.scrollTop")
    seen = log.inner_text().count("\n")
    until(lambda: log.inner_text().count("\n") > seen + 3, "the log to go on")
    assert log.evaluate("log => log.scrollTop") == before
    clear(cli, job)
    page.locator("[data-view=job] .chip[data-state=CANCELLED]").wait_for()
    assert page.locator("button[data-verb]").count() == 0
    # What the page said of its end came to nothing, since its owner has cancelled it.
    page.locator("[data-told=finish]", has_text=re.compile(r"^at \S+: ends .* \(rough\) — void$")).wait_for()


def test_a_reason_may_be_known_before_its_job(cli: LiveCli, open_page: Open) -> None:
    job = sleeper(cli, "--hold", "--name", "late")
    page = open_page()
    held: list[Any] = []
    page.route(f"**/v1/jobs/{job}", lambda route: held.append(route))
    with page.expect_request(f"**/v1/jobs/{job}"):
        page.evaluate("job => { location.hash = `#/job/${job}`; }", job)
    with page.expect_response(f"**/v1/jobs/{job}/why"):
        assert cli("update", job, "--priority", "5").code == 0
    page.wait_for_timeout(200)
    for route in held:
        route.continue_()
    page.unroute(f"**/v1/jobs/{job}")
    page.locator("[data-view=job]", has_text="held").first.wait_for()
    clear(cli, job)


def test_buttons_ask_and_say_what_was_done(cli: LiveCli, open_page: Open) -> None:
    job = sleeper(cli, "--gpus", "1", "--name", "acted", "--preempt", "restart")
    cli.wait_for(job, "RUNNING")
    page = open_page(f"job/{job}")

    def press(verb: str, *, asked: str) -> None:
        page.locator(f"button[data-verb={verb}]").click()
        page.locator("dialog[open]", has_text=asked).wait_for()
        page.locator("dialog[open] button[data-answer=yes]").click()

    page.locator("button[data-verb=cancel]").press("Enter")
    page.locator("dialog[open]", has_text="cannot be taken back").wait_for()
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for(state="detached")
    assert cli.show(job)["state"] == "RUNNING"
    press("hold", asked="keeps running")
    said(page, f"job {job}")
    press("release", asked="when it is its turn")
    page.locator("button[data-verb=hold]").wait_for()
    page.locator("button[data-verb=priority]").click()
    page.locator("dialog[open] input[name=priority]").fill("7")
    page.keyboard.press("Enter")
    said(page, "priority 7")
    assert cli.show(job)["priority"] == 7
    press("requeue", asked="the work so far is lost")
    said(page, "starts from the beginning")
    until(lambda: cli.show(job)["attempts"] == 2, "a second attempt")
    page.locator("button[data-verb=suspend]").wait_for()
    press("suspend", asked="until it is resumed")
    page.locator("button[data-verb=resume]").wait_for()
    press("resume", asked="when it is its turn")
    cli.wait_for(job, "RUNNING")
    page.locator("button[data-verb=suspend]").wait_for()
    press("cancel", asked="cannot be taken back")
    cli.wait_for(job, "CANCELLED")
    page.locator(".chip[data-state=CANCELLED]").wait_for()


def test_a_job_that_stays_in_memory_loses_nothing_and_says_so(cli: LiveCli, open_page: Open) -> None:
    job, tasks = trained(cli, "--name", "stays"), sleeper(cli, "--array", "0-1")
    cli.wait_for(job, "RUNNING")
    cli.wait_for(f"{tasks}_1", "RUNNING")
    page = open_page(f"job/{job}")
    page.locator("[data-view=job] dt:has-text('why') + dd", has_text="it runs").wait_for()
    page.locator("[data-view=job] [role=progressbar]").wait_for()
    # Something has just been told of it, so the next look at the reason is due in a while only.
    assert cli("update", job, "--priority", "1").code == 0
    page.locator("[data-view=job] dt:has-text('priority') + dd", has_text="1").wait_for()
    page.locator("button[data-verb=suspend]").click()
    page.locator("dialog[open]", has_text="Its processes stay in memory, and continue where they were.").wait_for()
    assert "beginning" not in page.locator("dialog[open]").inner_text()
    page.locator("dialog[open] button[data-answer=yes]").click()
    page.locator(".chip[data-state=SUSPENDED]").wait_for()
    why = page.locator("[data-view=job] dt:has-text('why') + dd").inner_text()
    assert why.startswith("suspended by its owner"), why
    show(page, f"job/{tasks}")
    page.locator("button[data-verb=suspend]").click()
    page.locator("dialog[open]", has_text="Their processes stay in memory").wait_for()
    page.keyboard.press("Escape")
    clear(cli, job, tasks)


def test_a_job_that_is_put_back_shows_where_it_starts_again(cli: LiveCli, open_page: Open) -> None:
    job = trained(cli, "--gpus", "4", "--name", "again", "--grace", "1")
    until(lambda: cli.show(job)["step"] > 1, "its steps")
    page = open_page(f"job/{job}")
    assert cli("hold", job).code == 0
    page.locator("button[data-verb=requeue]").click()
    page.locator("dialog[open] button[data-answer=yes]").click()
    said(page, "it has saved nothing and starts from the beginning")
    until(lambda: cli.show(job)["history"][-1]["ended_s"] is not None, "its processes to stop")
    assert cli.show(job)["step"] == 0
    show(page, "queue")
    row(page, job).locator(".c-progress", has_text="0 %").wait_for()
    (line,) = [line for line in cli("ls").out.splitlines() if line.startswith(f"{job} ")]
    assert "/10,000" not in line
    clear(cli, job)


def test_a_completed_job_shows_all_of_its_work(cli: LiveCli, open_page: Open) -> None:
    job = cli.submit("--", "bash", "-c", """echo '{"step": 190, "steps": 200}' >> $FAIRWAY_REPORT""")
    cli.wait_for(job, "COMPLETED")
    page = open_page()
    row(page, job).locator(".c-progress", has_text="100 %").wait_for()
    show(page, f"job/{job}")
    page.locator("[role=progressbar][aria-valuenow='100']").wait_for()
    (line,) = [line for line in cli("ls", "--all").out.splitlines() if line.startswith(f"{job} ")]
    assert "200/200" in line
    told = cli.show(job)
    assert (told["step"], told["steps"], told["progress"]["step"]) == (200, 200, 200)


def test_what_if_shows_both_sides_for_users_and_jobs(cli: LiveCli, open_page: Open) -> None:
    long = sleeper(cli, "--gpus", "4", "--name", "long", "--expect", "2h")
    short = sleeper(cli, "--gpus", "4", "--name", "short", "--expect", "5m")
    page = open_page("what-if")
    page.locator("[data-view=what-if] select").first.select_option("srtf")
    page.locator("button", has_text="Look ahead").click()
    page.locator(f"tr[data-job='{short}']").wait_for()
    page.locator("tr[data-user]").first.wait_for()
    gain = page.locator(f"tr[data-job='{short}']").inner_text()
    assert "2 h" in gain or "1 h" in gain, gain
    clear(cli, short, long)


def test_what_would_have_been_is_replayed_beside_what_happened(cli: LiveCli, open_page: Open) -> None:
    done = [cli.submit("--gpus", "1", "--", "sleep", "0.2") for _ in range(3)]
    for job in done:
        cli.wait_for(job, "COMPLETED")
    page = open_page("what-if")
    while (chosen := page.locator("fieldset.checks input:checked")).count():
        chosen.first.uncheck()
    for policy in ("fifo", "srtf"):
        page.locator(f"fieldset.checks input[value={policy}]").check()
    page.locator("button", has_text="Replay").click()
    rows = page.locator("tr[data-policy]")
    rows.nth(2).wait_for()
    assert rows.first.get_attribute("data-policy") == "actual"
    assert {one.get_attribute("data-policy") for one in rows.all()} == {"actual", "fifo", "srtf"}


def test_a_command_a_script_and_a_file_are_checked_as_typed_and_submitted(cli: LiveCli, open_page: Open) -> None:
    page = open_page("submit")
    area, button = page.locator("textarea"), page.get_by_role("button", name="Submit", exact=True)
    page.locator("input[name=cwd]").fill(str(cli.folder))
    page.locator("[data-kind=sbatch]").click()
    area.fill("#!/bin/bash\n#SBATCH --gpus=many\nsleep 1000\n")
    page.locator("#findings li[data-line='2']").wait_for()
    assert button.is_disabled()
    area.fill("#!/bin/bash\n#SBATCH --gpus=2\n#SBATCH --job-name=script\nsleep 1000\n")
    page.locator("[role=status]", has_text="one job of 2 GPUs").wait_for()
    button.click()
    page.wait_for_selector("[data-view=job] h1:has-text('script')")
    script = page.url.rpartition("/")[2]
    assert cli.show(script)["gpus"] == 2
    show(page, "submit")
    page.locator("[data-kind=skypilot]").click()
    area.fill("name: sky\nresources:\n  accelerators: V100:x\nrun: sleep 1000\n")
    page.locator("#findings li.worse").first.wait_for()
    area.fill("name: sky\nrun: sleep 1000\n")
    page.locator("[role=status]", has_text="Ready").wait_for()
    show(page, "submit")
    page.locator("[data-kind=command]").click()
    page.locator("input[name=gpus]").fill("900")
    area.fill("sleep 1000")
    page.locator(".worse:visible").first.wait_for()
    assert button.is_disabled()
    page.locator("input[name=gpus]").fill("1")
    page.locator("[role=status]", has_text="It would start at once").wait_for()
    area.press("Control+Enter")
    page.wait_for_selector("[data-view=job]")
    command = page.url.rpartition("/")[2]
    assert cli.show(command)["command"] == "sleep 1000"
    clear(cli, script, command)
