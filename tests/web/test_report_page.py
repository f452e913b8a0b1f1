"""The report in a real browser: everything is drawn, nothing fails, nothing a user named is run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_samples import ATTACK, MANY, POLICIES, nothing_finished, sample_result, shared_gpu

from fairway.report import render_html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [pytest.mark.web, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def browse(folder: Path, page: str, *options: str) -> str:
    """The document as Chromium leaves it after running the page."""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--no-first-run", f"--user-data-dir={folder / 'profile'}"),
        *("--virtual-time-budget=4000", "--window-size=1400,3000", *options, path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def document(folder: Path, page: str) -> str:
    dom = browse(folder, page, "--dump-dom")
    (body,) = re.findall(r"<body[^>]*>", dom)
    assert 'data-ready="1"' in body
    assert "data-error" not in body
    return dom


def section(dom: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', dom, re.DOTALL)
    assert found is not None
    return found[0]


def driven(page: str, script: str) -> str:
    """The page with a user at it: the script runs after the page's own (which its security policy would forbid)."""
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    return free.replace("</body>", f"<script>{script}</script></body>")


def test_all_charts_of_eight_policies_are_drawn(tmp_path: Path) -> None:
    dom = document(tmp_path, render_html([sample_result(policy) for policy in POLICIES]))
    for name in ("jct", "rho", "queue"):
        chart = section(dom, name).partition('class="chart"')[2]
        assert len(re.findall(r'<path class="line', chart)) == 8
        assert "<text" in chart
    assert section(dom, "busy").count('<path class="area') == 8
    assert "unfair beyond 1.05" in section(dom, "rho")
    assert "<canvas" in section(dom, "gantt")
    assert section(dom, "gantt").count("<option") == 8
    assert "user01" in section(dom, "owners")


def test_a_run_of_eighty_thousand_jobs_is_drawn_as_a_heat_map(tmp_path: Path) -> None:
    dom = document(tmp_path, render_html([sample_result("las", jobs=80_000, nodes=52, raster=True)]))
    assert 'class="ramp"' in section(dom, "gantt")
    assert "v100-50" in section(dom, "gantt")


def test_nothing_a_user_named_is_run(tmp_path: Path) -> None:
    results = [sample_result(ATTACK, jobs=30, job_prefix=ATTACK), sample_result("las", jobs=30) | {"trace": ATTACK}]
    for result in results:
        result["per_user"] = {ATTACK: result["per_user"].popitem()[1]}
        result["gantt"]["gpus"] = [ATTACK + name for name in result["gantt"]["gpus"]]
    dom = document(tmp_path, render_html(results, title=ATTACK))
    assert "<img" not in dom
    assert dom.count("<script") == 2


@pytest.mark.parametrize("results", [[nothing_finished(), nothing_finished("las")], [sample_result(jobs=1, nodes=1)]])
def test_a_page_with_next_to_nothing_on_it_is_still_a_page(tmp_path: Path, results: list[dict[str, object]]) -> None:
    assert "Definitions" in document(tmp_path, render_html(results))


def test_a_bare_result_says_what_is_missing(tmp_path: Path) -> None:
    bare = sample_result(per_job=False)
    for key in ("series", "gantt", "per_user", "per_queue"):
        del bare[key]
    dom = document(tmp_path, render_html([bare]))
    assert dom.count('class="empty"') == 6


def test_a_heading_sorts_and_a_legend_hides(tmp_path: Path) -> None:
    script = """
      const means = document.querySelectorAll("#compare thead tr:last-child button")[2];
      means.click(); means.click();
      document.querySelector("#jct .legend button").click();
      document.querySelector('#rho [data-value="isolated"]').click();
      document.querySelector('#jct [data-value="tail"]').click();
    """
    dom = document(tmp_path, driven(render_html([sample_result(policy) for policy in POLICIES]), script))
    means = [float(v) for v in re.findall(r'<td class="text".*?</td><td class="[^"]*" data-sort="([^"]*)"', dom)]
    assert means == sorted(means, reverse=True)
    assert len(means) == 8
    for name in ("jct", "rho", "queue"):
        chart = section(dom, name).partition('class="chart"')[2]
        assert len(re.findall(r'<path class="line', chart)) == 7
    assert re.search(r'<th[^>]*data-rho="static"[^>]*hidden', dom)
    assert "share of jobs still in the system" in dom


def test_hovering_a_block_names_its_job(tmp_path: Path) -> None:
    script = """
      const gantt = document.querySelector("#gantt svg");
      const box = gantt.getBoundingClientRect();
      gantt.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 95, clientY: box.top + 8 }));
    """
    result = sample_result(jobs=1, nodes=1, job_prefix="train-")
    dom = document(tmp_path, driven(render_html([result]), script))
    tip = dom.partition('id="tip"')[2]
    assert "train-0" in tip
    assert 'class="same"' in section(dom, "gantt")


@pytest.mark.parametrize(
    ("x", "y", "job"),
    [(0.2, 0.25, "the-host"), (0.2, 0.75, "the-guest"), (0.05, 0.25, "the-host"), (0.8, 0.75, "idle")],
)
def test_hovering_a_shared_gpu_names_the_job_drawn_there(tmp_path: Path, x: float, y: float, job: str) -> None:
    script = f"""
      const gantt = document.querySelector("#gantt svg");
      const canvas = document.querySelector("#gantt canvas");
      const box = canvas.getBoundingClientRect();
      const spot = {{ clientX: box.left + {x} * box.width, clientY: box.top + {y} * box.height }};
      gantt.dispatchEvent(new PointerEvent("pointermove", spot));
      const pen = canvas.getContext("2d");
      const shade = (part) => pen.getImageData(0.2 * canvas.width, part * canvas.height, 1, 1).data.join();
      document.body.dataset.colours = new Set([shade(0.25), shade(0.75)]).size;
    """
    dom = document(tmp_path, driven(render_html([shared_gpu()]), script))
    title = re.search(r'id="tip".*?<b>(.*?)</b>', dom, re.DOTALL)
    assert title is not None
    assert job in title[1]
    assert 'data-colours="2"' in dom
    assert "jobs that share a GPU are drawn above each other" in section(dom, "gantt")


def test_fifteen_policies_fit_a_page_of_1400_pixels(tmp_path: Path) -> None:
    script = """
      document.querySelector("#compare-controls button.all").click();
      const boxes = [...document.querySelectorAll(".scroll")];
      document.body.dataset.over = boxes.map((box) => box.scrollWidth - box.clientWidth).join();
      const panels = [...document.querySelectorAll("#busy .swatch")];
      const looks = panels.map(getComputedStyle).map((look) => look.color + look.borderWidth + look.backgroundImage);
      document.body.dataset.looks = new Set(looks).size;
    """
    widest = {"deadline_misses": 12, "finished": 290}
    results = [sample_result(policy, seed=seed) | widest for policy in MANY for seed in (0, 1)]
    dom = document(tmp_path, driven(render_html(results), script))
    assert len(MANY) == 15
    assert 'data-over="0,0"' in dom
    assert 'data-looks="15"' in dom


def test_of_many_policies_the_best_eight_are_shown_and_the_others_after_a_click(tmp_path: Path) -> None:
    script = """
      const count = (what) => [...document.querySelectorAll(what)].filter((one) => !one.hidden).length;
      const parts = ["#compare tbody tr", "#jct .chart path.line", "#jct .legend svg", "#busy .panels > div"];
      const look = () => [...parts.map(count), count("#owners thead th") - 3].join(",");
      const click = () => document.querySelector("#compare-controls button.all").click();
      const seen = [look()];
      click(); seen.push(look());
      click(); seen.push(look());
      document.body.dataset.seen = seen.join(" ");
    """
    dom = document(tmp_path, driven(render_html([sample_result(policy) for policy in MANY]), script))
    assert 'data-seen="8,8,8,8,8 15,15,15,15,15 8,8,8,8,8"' in dom


def test_the_label_of_the_unfair_part_stays_inside_its_chart(tmp_path: Path) -> None:
    script = """
      const label = document.querySelector("#rho text.limit").getBoundingClientRect();
      const chart = document.querySelector("#rho .chart svg").getBoundingClientRect();
      document.body.dataset.inside = label.right <= chart.right && label.left >= chart.left;
    """
    result = sample_result()
    for job in result["per_job"]:
        job["rho_static"] = min(job["rho_static"], 1.0)
    assert 'data-inside="true"' in document(tmp_path, driven(render_html([result]), script))


@pytest.mark.parametrize(("scheme", "dark"), [(0, True), (1, False)])
def test_the_page_paints_in_light_and_dark(tmp_path: Path, scheme: int, dark: bool) -> None:
    target = tmp_path / "page.png"
    page = render_html([sample_result(policy) for policy in POLICIES])
    browse(tmp_path, page, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={target}")
    assert target.stat().st_size > 100_000, "dark" if dark else "light"
