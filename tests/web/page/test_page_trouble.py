"""The page when things go wrong: expired links, a scheduler that goes away, jobs that vanish, names that attack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from browsing import UP, Open, link_of, row, show
from live_cli import LiveCli, until

ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


def sleeper(cli: LiveCli, *options: str) -> str:
    return cli.submit(*options, "--", "sleep", "1000")


def test_a_link_signs_in_once(cli: LiveCli, open_page: Open) -> None:
    link = link_of(cli)
    page = open_page(address=link)
    page.wait_for_selector("[data-view=queue]")
    assert "link=" not in page.url
    cookies = page.context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    assert page.evaluate("document.cookie") == ""
    other = open_page(address=link, allowed="401")
    other.locator("[data-view=sign-in]", has_text="run `fairway web` for a new one").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector("[data-view=sign-in]")


def test_a_token_signs_in_too(cli: LiveCli, open_page: Open) -> None:
    page = open_page(address=link_of(cli).partition("#")[0], allowed="401")
    page.locator("#token").fill("not a token")
    page.get_by_role("button", name="Sign in").click()
    page.locator("[role=alert]", has_text="token").wait_for()
    page.locator("#token").fill((cli.state / "token").read_text().strip())
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-view=queue]")


def test_who_may_only_look_gets_no_buttons(cli: LiveCli, open_page: Open) -> None:
    job = sleeper(cli, "--hold")
    page = open_page(address=link_of(cli, "--read-only"), allowed="403")
    page.locator("#who", has_text="read only").wait_for()
    show(page, f"job/{job}")
    page.locator(".chip[data-state=PENDING]").wait_for()
    assert page.locator("button[data-verb]").count() == 0
    assert not page.locator("nav a[href='#/submit']").is_visible()
    # What the page does not offer is refused as well.
    status = page.evaluate(f"fetch('/v1/jobs/{job}/cancel', {{method: 'POST'}}).then(a => a.status)")
    assert status == 403
    assert cli.show(job)["state"] == "PENDING"
    cli("cancel", job)


@pytest.mark.usefixtures("cli")
def test_a_scheduler_that_goes_away_is_told_and_found_again(tmp_path: Path, open_page: Open) -> None:
    other = LiveCli(tmp_path)
    try:
        other.start(*UP)
        address = link_of(other)
        page = open_page(address=address, allowed=".")
        port = address.partition("127.0.0.1:")[2].partition("/")[0]
        job = sleeper(other, "--hold", "--name", "before")
        row(page, job).wait_for()
        other.kill()
        page.locator("#banner", has_text="does not answer").wait_for()
        other.start(*UP[:-1], f"127.0.0.1:{port}")
        page.locator("#banner").wait_for(state="hidden")
        later = sleeper(other, "--hold", "--name", "after")
        row(page, later).wait_for()
        row(page, job).wait_for()
    finally:
        other.close()


def test_a_job_that_vanishes_is_told(cli: LiveCli, open_page: Open) -> None:
    job = cli.submit("--", "true")
    cli.wait_for(job, "COMPLETED")
    page = open_page(f"job/{job}", allowed="404")
    page.locator(".chip[data-state=COMPLETED]").wait_for()
    assert cli("gc", "--keep", "0").code == 0
    until(lambda: cli("show", job).code != 0, "the job to be deleted")
    show(page, "queue")
    show(page, f"job/{job}")
    page.locator("[data-view=job]", has_text=f"Job {job} is not there").wait_for()


def test_what_a_user_wrote_is_never_run(cli: LiveCli, open_page: Open) -> None:
    job = cli.submit(
        "--gpus", "1", "--", "sh", "-c", f"echo {json.dumps(ATTACK)} | tee /dev/stderr; sleep 1000", ATTACK
    )
    cli.wait_for(job, "RUNNING")
    page = open_page()
    row(page, job).locator(".c-why", has_text="onerror").wait_for()
    show(page, f"job/{job}")
    page.locator("pre.log", has_text="onerror").wait_for()
    # Names with such characters are refused, but the page does not rely on that.
    assert cli("submit", "--name", ATTACK, "--", "true").code == 2

    def attacked(route: Any) -> None:
        answer = route.fetch()
        told = answer.json()
        text = json.dumps(told)
        route.fulfill(response=answer, body=text.replace('"sh -c', f"{json.dumps(ATTACK)[:-1]}sh -c"))

    page.route("**/v1/**", lambda route: attacked(route) if "/page/jobs" in route.request.url else route.continue_())
    page.reload()
    for view in ("queue", "cluster", f"job/{job}", "what-if"):
        show(page, view)
    assert "taken" not in page.title()
    assert page.locator("img").count() == 0
    cli("cancel", job)


def test_a_log_of_two_gigabytes_is_opened_at_its_end(cli: LiveCli, open_page: Open) -> None:
    job = cli.submit("--gpus", "1", "--", "sleep", "1000")
    cli.wait_for(job, "RUNNING")
    (log,) = cli.state.glob(f"jobs/{job}/attempt-1/rank-0.log")
    # A file with a hole: it is as long, but takes no room.
    with log.open("ab") as file:
        os.truncate(file.fileno(), 2 << 30)
    with log.open("ab") as file:
        file.write(b"\nthe last line\n")
    page = open_page(f"job/{job}")
    sizes = list[int]()
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    page.locator("pre.log", has_text="the last line").wait_for()
    with log.open("ab") as file:
        file.write(b"one more line\n")
    page.locator("pre.log", has_text="one more line").wait_for()
    assert page.locator("pre.log").evaluate("log => log.textContent.length") < 1_100_000
    cli("cancel", job)
