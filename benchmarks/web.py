"""What the web page costs: bytes of its first load, time to the first paint, and what open pages do to the scheduler.

    python benchmarks/web.py [--jobs 10000] [--pages 50] [--seconds 30] [--no-browser]

Four virtual GPUs. Two are held by long jobs and the queue needs three at once, so two GPUs are idle: small jobs that
come then are to start at once. The scheduler runs as users run it (`fairway up --web`). Pages are opened in a process
of their own, and do what the page does: they follow the events, ask for the rows on the screen and the changed ones at
most once a second, and for status and forecast every four seconds while something happens. The first load is also
measured in Chromium, if Playwright and Debian's Chromium are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from live_load import until

from fairway.api.web_page import assets
from fairway.client import Client, ClientError

GPUS, SCREEN = 4, 40
"""GPUs, and the rows on a screen."""
PAUSE_S, LOOK_S = 1.0, 4.0
"""How often a page asks for rows, and for status and forecast, at most."""
CHROMIUM = "/usr/bin/chromium"
_MARK = "import sys,time; open(sys.argv[1],'w').write(repr(time.time()))"
Row = tuple[str, str, str]


class Page:
    """One open page, without a browser."""

    def __init__(self, host: str, port: int, cookie: str) -> None:
        self._host, self._port = host, port
        self._head = f"Host: {host}:{port}\r\nCookie: {cookie}\r\nAccept-Encoding: gzip\r\n"
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()
        self.events = self.requests = self.bytes = self.failures = 0

    async def open(self) -> None:
        """Load everything, and follow what happens until cancelled."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        for name in ["", *(f"web/{name}" for name in assets())]:
            await self._get(f"/{name}")
        await self._get("/v1/page/jobs")
        await self._get("/v1/forecast")
        await asyncio.gather(self._follow(), self._ask())

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(f"GET /v1/events HTTP/1.1\r\n{self._head}\r\n".encode())
        if b" 200 " not in await reader.readline():
            self.failures += 1
            return
        while line := await reader.readline():
            if line.startswith(b"data: "):
                self.events += 1
                job = json.loads(line[6:]).get("job")
                if job is not None:
                    self._changed[job] = None
                self._news.set()

    async def _ask(self) -> None:
        looked_s = time.monotonic()
        while True:
            await self._news.wait()
            self._news.clear()
            ids, self._changed = [*list(self._changed)[:400], *map(str, range(3, 3 + SCREEN))], {}
            await self._get("/v1/page/jobs?" + "&".join(f"id={one}" for one in ids))
            if time.monotonic() > looked_s + LOOK_S:
                looked_s = time.monotonic()
                await self._get("/v1/status")
                await self._get("/v1/forecast")
            await asyncio.sleep(PAUSE_S)

    async def _get(self, path: str) -> None:
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(one[15:]) for one in head.lower().split(b"\r\n") if one.startswith(b"content-length:"))
        await self._reader.readexactly(length)
        self.requests += 1
        self.bytes += len(head) + length
        self.failures += head.split(b" ", 2)[1] not in (b"200", b"202")


def browse(host: str, port: int, cookies: Sequence[str], told: Any) -> None:
    """Have pages open until this process is ended; the sums of their figures every half second."""

    async def run() -> None:
        pages = [Page(host, port, one) for one in cookies]
        opened = [asyncio.ensure_future(page.open()) for page in pages]
        while not any(one.done() for one in opened):
            for at, name in enumerate(("requests", "bytes", "events", "failures")):
                told[at] = sum(getattr(page, name) for page in pages)
            await asyncio.sleep(0.5)
        told[3] += 1

    asyncio.run(run())


class Site:
    """A scheduler with its page, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = ["up", "--gpus", str(GPUS), "--state", str(folder / "state"), "--web", "127.0.0.1:0"]
        self.process = subprocess.Popen([sys.executable, "-m", "fairway", *words], stdout=subprocess.DEVNULL)
        self.client = Client(folder / "state")
        until(self._answers)
        self._marks = 0

    def _answers(self) -> bool:
        try:
            return bool(self.client.status())
        except ClientError:
            return False

    def fill(self, jobs: int) -> None:
        """Two long jobs, and a queue behind them, with names and commands of their own."""
        self.client.submit([{"command": ["sleep", "36000"], "preempt": "never", "grace_s": 0.1}] * 2)
        models = ("resnet50", "bert-large", "gpt2", "vit-l", "unet", "llama-7b")
        for first in range(0, jobs - 2, 500):
            part = []
            for at in range(first, min(first + 500, jobs - 2)):
                model, seed = models[at * 7919 % 6], at * 104_729 % 999_983
                command = ["python", "train.py", "--model", model, "--lr", f"0.{at * 31 % 9973:06d}"]
                command += ["--seed", str(seed)]
                about = {"user": f"user{at * 17 % 40}", "queue": ("", "night", "prod")[at % 3], "priority": at % 2}
                part.append({"command": command, "name": f"{model}-{at}", "gpus": 3, "expected_s": 600.0, **about})
            self.client.submit(part)

    def link(self) -> str:
        """A link that signs in."""
        return str(self.client.web()["url"])

    def cookie(self) -> tuple[str, int, str]:
        """The address of the page, and the cookie of a new session."""
        import http.client

        address, _, secret = self.link().removeprefix("http://").partition("/#link=")
        connection = http.client.HTTPConnection(address)
        body = json.dumps({"link": secret})
        connection.request("POST", "/web/session", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]
        connection.close()
        host, _, port = address.rpartition(":")
        return host, int(port), cookie

    def cpu_s(self) -> float:
        """The CPU time that the scheduler has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def share(self, seconds: float) -> float:
        """The share of one CPU that the scheduler uses while nothing happens."""
        began_s, used_s = time.monotonic(), self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - used_s) / (time.monotonic() - began_s)

    def starts_s(self, jobs: int) -> list[float]:
        """Seconds from the call that submits a small job to its first line of code, for some jobs."""
        took = []
        for _ in range(jobs):
            self._marks += 1
            mark = self.folder / f"mark-{self._marks}"
            asked_s = time.time()
            self.client.submit({"command": [sys.executable, "-I", "-S", "-c", _MARK, str(mark)], "gpus": 1})
            until(lambda: mark.exists() and mark.stat().st_size > 0)  # noqa: B023 - waited for within the loop
            took.append(float(mark.read_text()) - asked_s)
            time.sleep(0.2)
        return took

    def decisions(self) -> tuple[float, float]:
        """How many decisions there were, and the seconds that they took."""
        figures = dict(line.rsplit(" ", 1) for line in self.client.metrics().splitlines() if line[0] != "#")
        return float(figures["fairway_decision_seconds_count"]), float(figures["fairway_decision_seconds_sum"])

    def close(self) -> None:
        """End the long jobs and the scheduler."""
        for row in self.client.ls(state="RUNNING"):
            self.client.cancel(row["id"])
        until(lambda: not self.client.ls(state="RUNNING"))
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


class Opened:
    """Pages that are open in a process of their own."""

    def __init__(self, site: Site, pages: int) -> None:
        sessions = [site.cookie() for _ in range(pages)]
        host, port, _ = sessions[0]
        context = get_context("spawn")
        self.told = context.Array("q", 4)
        self._process = context.Process(target=browse, args=(host, port, [one for *_, one in sessions], self.told))
        self._process.start()
        loads = (len(assets()) + 3) * pages
        until(lambda: self.told[0] >= loads or self.told[3] > 0, most_s=120.0, pause_s=0.2)

    def close(self) -> None:
        """Close all pages."""
        self._process.terminate()
        self._process.join()


def main() -> None:
    """Run all measurements and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each share of the CPU is measured")
    parser.add_argument("--starts", type=int, default=40)
    parser.add_argument("--no-browser", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fairway-web-"))
    site = Site(folder)
    try:
        site.fill(options.jobs)
        rows = first_load(site)
        rows += [] if options.no_browser else in_browser(site)
        rows += open_pages(site, options)
    finally:
        site.close()
        shutil.rmtree(folder, ignore_errors=True)
    width = max(len(name) for name, *_ in rows)
    print(f"{options.jobs} jobs; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, value, target in rows:
        print(f"  {name:<{width}}  {value:>18}  {target}")


def first_load(site: Site) -> list[Row]:
    """Bytes of the first load, and the time of the list."""

    async def run() -> tuple[int, int, float, float]:
        page = Page(*site.cookie())
        page._reader, page._writer = await asyncio.open_connection(page._host, page._port)
        for name in ["", *(f"web/{name}" for name in assets() if name != "index.html")]:
            await page._get(f"/{name}")
        files, took = page.bytes, []
        for pause_s in (0.0, 0.0):
            began_s = time.perf_counter()
            await page._get("/v1/page/jobs")
            took.append(time.perf_counter() - began_s)
            await asyncio.sleep(pause_s)
        return files, (page.bytes - files) // 2, took[0], took[1]

    files, listed, first_s, again_s = asyncio.run(run())
    return [
        ("first load: files, list", f"{files / 1e3:.0f} + {listed / 1e3:.0f} kB", "at most 300 kB, list 200 kB"),
        ("list: made, kept", f"{1e3 * first_s:.0f}, {1e3 * again_s:.1f} ms", ""),
    ]


def in_browser(site: Site) -> list[Row]:
    """The first load as Chromium sees it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return [("in Chromium", "not measured", "Playwright is not there")]
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=flags)
        context = browser.new_context()
        signing = context.new_page()
        signing.goto(site.link())
        signing.get_by_text("llama-7b").first.wait_for(timeout=60_000)
        signing.close()
        paints, rows_ms, wire = list[float](), list[float](), 0
        for _ in range(5):
            page, sizes = context.new_page(), list[float]()
            session = context.new_cdp_session(page)
            session.send("Network.enable")
            session.send("Network.setCacheDisabled", {"cacheDisabled": True})
            session.on("Network.loadingFinished", lambda one, sizes=sizes: sizes.append(one["encodedDataLength"]))
            page.goto(site.link().partition("#")[0])
            page.get_by_text("llama-7b").first.wait_for(timeout=60_000)
            rows_ms.append(page.evaluate("performance.now()"))
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            page.wait_for_timeout(500)
            wire = max(wire, int(sum(sizes)))
            page.close()
        browser.close()
    return [
        ("in Chromium: first paint, best / median", _two(paints), "at most 500 ms"),
        ("in Chromium: rows are there, best / median", _two(rows_ms), ""),
        ("in Chromium: bytes of the first load", f"{wire / 1e3:.0f} kB", "at most 300 kB"),
    ]


def _two(values_ms: Sequence[float]) -> str:
    ordered = sorted(values_ms)
    return f"{ordered[0]:.0f} / {ordered[len(ordered) // 2]:.0f} ms"


def open_pages(site: Site, options: argparse.Namespace) -> list[Row]:
    """What one idle page and many busy ones cost."""
    # The page in the browser was looked at a moment ago.
    time.sleep(10.0)
    quiet = site.share(options.seconds)
    one = Opened(site, 1)
    time.sleep(8.0)
    idle = site.share(options.seconds)
    one.close()
    rows = [("CPU of the scheduler: no page, one idle page", f"{quiet:.2%}, {idle:.2%}", "at most 1 % more")]
    before = measured(site, options.starts)
    many = Opened(site, options.pages)
    time.sleep(8.0)
    idle = site.share(options.seconds)
    rows.append((f"CPU of the scheduler: {options.pages} idle pages", f"{idle:.2%}", ""))
    asked, began_s = many.told[0], time.monotonic()
    during = measured(site, options.starts)
    rate, failures = (many.told[0] - asked) / (time.monotonic() - began_s), many.told[3]
    many.close()
    after = measured(site, options.starts)
    start, decision, cpu = zip(before, during, after, strict=True)
    return [
        *rows,
        (f"jobs start: without, with {options.pages} pages, without", f"{rate:.0f} requests/s", f"{failures} failures"),
        ("  from submission to first line, median / p90", "; ".join(start), ""),
        ("  decision, mean", "; ".join(decision), ""),
        ("  CPU of the scheduler", "; ".join(cpu), ""),
    ]


def measured(site: Site, jobs: int) -> tuple[str, str, str]:
    """How long small jobs take to start, how long decisions take meanwhile, and what the scheduler uses."""
    (count, sum_s), began_s, used_s = site.decisions(), time.monotonic(), site.cpu_s()
    took = sorted(site.starts_s(jobs))
    cpu = (site.cpu_s() - used_s) / (time.monotonic() - began_s)
    more, later_s = site.decisions()
    text = f"{1e3 * took[len(took) // 2]:.0f} / {1e3 * took[len(took) * 9 // 10]:.0f} ms"
    return text, f"{1e3 * (later_s - sum_s) / max(more - count, 1):.1f} ms", f"{cpu:.0%}"


if __name__ == "__main__":
    main()
