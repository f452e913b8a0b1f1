"""Make the screenshots of the docs: a real scheduler, jobs that train in pretence, and a real browser.

    python docs/pictures/screenshots.py [FOLDER]

Needs Playwright and Chromium. The page names who runs this: do not run it as root. It takes about three minutes,
because jobs need time to have a past.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

BEFORE_SUSPENSION_S, RUNS_S = 20.0, 60.0
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
# It prints steps and a loss that falls, as many scripts do.
TRAINING = """
import random, sys, time
steps, pause_s, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
noise = random.Random(seed)
for step in range(1, steps + 1):
    time.sleep(pause_s)
    loss = 2.5 / step**0.35 + noise.gauss(0, 0.02)
    print(f"step {step}/{steps}  loss {loss:.3f}", flush=True)
"""


class Site:
    """A scheduler in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(TRAINING)

    def run(self, *words: str) -> str:
        """Call the command line."""
        command, where = [sys.executable, "-m", "fairway", *words], {"FAIRWAY_STATE": str(self.folder / "state")}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, cwd=self.folder, env=os.environ | where
        )
        return done.stdout.strip()

    def train(self, name: str, user: str, gpus: int, seconds: float, *more: str) -> str:
        """Submit a job that takes about so long."""
        steps = ["python3", self.script.name, str(int(seconds / 0.25)), "0.25", str(len(name))]
        return self.run(
            "submit", "--parsable", "--name", name, "--user", user, "--gpus", str(gpus), *more, "--", *steps
        )

    def state_of(self, job: str) -> str:
        """The state of a job."""
        return str(json.loads(self.run("show", "--json", job))["state"])


@contextmanager
def scheduler(folder: Path) -> Iterator[Site]:
    """A scheduler with eight pretended GPUs and jobs of four users."""
    up = [sys.executable, "-m", "fairway", "up", "--state", str(folder / "state"), "--web", "127.0.0.1:0"]
    options = ["--gpus", "a100:4,v100:4", "--policy", "tiresias"]
    process = subprocess.Popen([*up, *options], stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield Site(folder)
    finally:
        subprocess.run(
            [sys.executable, "-m", "fairway", "down", "--state", str(folder / "state"), "--jobs", "stop"], check=False
        )
        process.wait()


def populate(site: Site) -> str:
    """Two jobs that have ended, three that run, one that is suspended and six that wait, each for a reason of its own.

    Returns one that runs.
    """
    ended = [site.train("smoke-test", "dee", 1, 6.0), site.train("resnet50-eval", "ben", 2, 9.0)]
    while any(site.state_of(job) != "COMPLETED" for job in ended):
        time.sleep(1.0)
    shown = site.train("gpt-small-pretrain", "ann", 2, 900.0, "--type", "a100")
    site.train("vit-l-finetune", "ben", 4, 600.0, "--type", "v100")
    aside = site.train("whisper-large", "dee", 1, 600.0, "--type", "a100")
    time.sleep(BEFORE_SUSPENSION_S)
    site.run("suspend", aside)
    evaluates = site.train("bert-base-sweep", "chi", 1, 400.0, "--type", "a100")
    site.train("resnet50-ablation", "ann", 2, 500.0, "--type", "a100")
    site.train("dlrm-week-46", "ben", 1, 300.0, "--type", "v100")
    site.train("vit-l-distill", "dee", 4, 700.0)
    site.train("bert-base-report", "chi", 1, 60.0, "--depends", f"afterok:{evaluates}")
    site.train("nightly", "dee", 4, 120.0, "--begin", "9h")
    site.train("gpt-small-long", "ann", 4, 3000.0, "--hold")
    return shown


def take(page: Any, folder: Path, name: str) -> None:
    """Keep what is on the screen."""
    page.wait_for_selector("body[data-ready='1']")
    page.wait_for_timeout(2500)
    page.screenshot(path=str(folder / f"page_{name}.png"))
    print(folder / f"page_{name}.png")


def pictures(site: Site, shown: str, folder: Path) -> None:
    """All views, some in the dark, one on a phone."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme, size, views in (
            ("light", WIDE, {"queue": "queue", f"job/{shown}": "job", "what-if": "what_if"}),
            ("dark", WIDE, {"cluster": "cluster"}),
            ("light", PHONE, {"queue": "phone"}),
        ):
            page = browser.new_context(viewport=size, color_scheme=scheme, locale="en-GB").new_page()
            page.goto(site.run("web").split()[0])
            page.wait_for_selector("body[data-ready='1']")
            for view, name in views.items():
                page.evaluate(f"location.hash = '#/{view}'")
                page.wait_for_selector(f"[data-view='{view.partition('/')[0]}']")
                if view == "what-if":
                    page.locator("[data-view=what-if] select").first.select_option("srtf")
                    page.get_by_role("button", name="Look ahead").click()
                    page.locator("tr[data-user]").first.wait_for()
                take(page, folder, name)
        browser.close()


def main() -> None:
    """Make all pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    with tempfile.TemporaryDirectory() as scratch, scheduler(Path(scratch)) as site:
        shown = populate(site)
        time.sleep(RUNS_S)
        pictures(site, shown, folder)


if __name__ == "__main__":
    main()
