"""The page: what it contains, what it never lets through, how large it may grow."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from report_samples import ATTACK, MANY, POLICIES, nothing_finished, sample_result

from fairway.core.errors import InputError
from fairway.report import render_html
from fairway.report.columns import COLUMNS
from fairway.report.html import POLICIES_SHOWN


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    payload: dict[str, Any] = json.loads(found[1])
    return payload


def table_rows(page: str) -> list[str]:
    body = re.search(r'id="compare".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body is not None
    return re.findall(r"<tr data-policy=.*?>(.*?)</tr>", body[1], re.DOTALL)


@pytest.fixture(scope="module")
def eight_policies() -> list[dict[str, Any]]:
    return [sample_result(policy) for policy in POLICIES]


def test_the_page_asks_the_network_for_nothing(eight_policies: list[dict[str, Any]]) -> None:
    page = render_html(eight_policies)
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|fetch\(|XMLHttpRequest""", page)
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_every_policy_has_one_row_and_one_entry(eight_policies: list[dict[str, Any]]) -> None:
    page = render_html(eight_policies, title="A comparison")
    assert len(table_rows(page)) == 8
    assert [policy["label"] for policy in embedded(page)["policies"]] == list(POLICIES)
    assert "<h1>A comparison</h1>" in page


def test_the_top_of_the_page_says_what_ran() -> None:
    page = render_html([sample_result("fifo", seed=3) | {"skipped": 7}])
    for name, value in {"trace": "philly.csv", "cluster": "v100:4x8 (32 GPUs)", "seed": "3", "skipped": "7"}.items():
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page


def test_definitions_of_all_three_rho_are_on_the_page() -> None:
    page = render_html([sample_result()])
    for kind in ("static", "concurrent", "isolated"):
        assert f"<dt>ρ {kind}</dt>" in page


def test_every_column_that_needs_one_has_a_definition_on_the_page_under_its_own_name() -> None:
    page = render_html([sample_result()])
    for name in ("feedback", "utilised", "useful", "cost"):
        assert f'<button type="button">{name}' in page
        assert f"<dt>{name.capitalize()}</dt>" in page
    assert '<button type="button">work' not in page


def test_the_cost_column_says_that_each_job_on_a_shared_gpu_pays() -> None:
    (cost,) = (column for column in COLUMNS if column.key == "cost")
    assert "share a GPU each pay" in cost.meaning


def test_no_two_of_twenty_four_policies_share_a_swatch() -> None:
    page = render_html([sample_result(f"policy{n}", jobs=5, nodes=1) for n in range(24)])
    marks = [re.search(r'class="(swatch [^"]*)"', row) for row in table_rows(page)]
    assert len({mark[1] for mark in marks if mark is not None}) == 24


def test_only_the_best_value_of_a_column_is_marked() -> None:
    slow, quick = sample_result("fifo"), sample_result("srtf")
    slow["jct_s"]["mean"], quick["jct_s"]["mean"] = 7200.0, 3600.0
    slow["utilisation"], quick["utilisation"] = 0.9, 0.5
    slow["preemptions"] = quick["preemptions"] = 4
    first, second = table_rows(render_html([slow, quick]))
    assert 'class="" data-sort="7200.0">2.00' in first
    assert 'class="best" data-sort="3600.0">1.00' in second
    assert 'class="best" data-sort="0.9">90.0' in first
    assert 'class="" data-sort="4.0">4' in first
    assert 'class="" data-sort="4.0">4' in second


def test_runs_on_different_clusters_get_no_winner() -> None:
    page = render_html([sample_result("fifo", nodes=2), sample_result("srtf", nodes=4)])
    assert 'class="best" data-sort' not in page
    assert "differ in trace or cluster" in page


def test_unfinished_jobs_are_announced_and_count_as_never_done() -> None:
    result = sample_result("fifo", jobs=100) | {"finished": 90}
    for job in result["per_job"][:10]:
        job["jct_s"] = None
    page = render_html([result])
    assert "Not every job finished under fifo" in page
    assert "of 100" in table_rows(page)[0]
    assert embedded(page)["policies"][0]["jct"]["y"][-1] == pytest.approx(0.9)


@pytest.mark.parametrize("field", ["policy", "trace", "cluster", "rules", "placement"])
def test_names_that_are_markup_stay_text(field: str) -> None:
    page = render_html([sample_result() | {field: ATTACK}, sample_result("las")])
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 2


def test_job_and_user_names_that_are_markup_stay_text() -> None:
    result = sample_result(job_prefix=ATTACK, jobs=20)
    result["per_user"] = {ATTACK: {"jobs": 1, "gpu_h": 2.0, "jct_mean_s": 3.0, "queue_mean_s": None}}
    result["gantt"]["gpus"][0] = ATTACK
    page = render_html([result], title=ATTACK)
    assert "<img" not in page
    assert page.count("</script>") == 2
    payload = embedded(page)
    assert payload["users"]["names"] == [ATTACK]
    assert f"{ATTACK}0" in payload["names"][payload["policies"][0]["gantt"]["jobs"]]


def test_names_with_template_marks_or_half_characters_do_no_harm() -> None:
    page = render_html([sample_result() | {"policy": "%%script%% \ud800", "trace": "%%data%%"}])
    assert "%%script%%" in page
    page.encode("utf-8")


def test_a_run_in_which_nothing_finished_still_has_a_page() -> None:
    page = render_html([nothing_finished(), nothing_finished("las")])
    policy = embedded(page)["policies"][0]
    assert policy["jct"] is None
    assert policy["gantt"] is None
    assert "of 3" in table_rows(page)[0]


def test_values_that_are_not_finite_become_gaps() -> None:
    result = sample_result() | {"cost": float("nan"), "jain": float("inf")}
    result["per_job"][0]["jct_s"] = float("inf")
    page = render_html([result])
    assert embedded(page)["policies"][0]["jct"]["known"] == 299
    assert "nan" not in table_rows(page)[0]


def test_a_bare_result_renders() -> None:
    bare = sample_result(per_job=False)
    for key in ("series", "gantt", "per_user", "per_queue", "seed", "knows", "rules", "skipped"):
        del bare[key]
    page = render_html([bare])
    assert "no per-job rows" in page
    assert embedded(page)["policies"][0]["busy"] is None


def test_seeds_share_a_row_with_mean_and_spread() -> None:
    runs = [sample_result("fifo", seed=seed) for seed in range(3)]
    for run, mean in zip(runs, (3600.0, 7200.0, 10800.0), strict=True):
        run["jct_s"]["mean"] = mean
    page = render_html(runs)
    (row,) = table_rows(page)
    assert 'data-sort="7200.0">2.00 <span class="spread">±1.00' in row
    assert embedded(page)["policies"][0]["jct"]["all"] == 900


def test_no_result_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no result"):
        render_html([])


@pytest.mark.slow
def test_eight_policies_with_eighty_thousand_jobs_stay_a_light_page() -> None:
    big = sample_result("fifo", jobs=80_000, nodes=52, raster=True)
    many = {f"user{n}": {"jobs": 1, "gpu_h": n, "jct_mean_s": 12345.678, "queue_mean_s": 2.5} for n in range(3000)}
    results = [big | {"policy": policy, "per_user": many} for policy in POLICIES]
    page = render_html(results)
    assert len(page.encode()) < 3_000_000
    for policy in embedded(page)["policies"]:
        assert len(policy["jct"]["x"]) <= 400
        assert all(len(curve["x"]) <= 400 for curve in policy["rho"].values())


def test_many_segments_become_a_heat_map_and_the_page_stays_light() -> None:
    result = sample_result("fifo", jobs=20_000, nodes=32)
    page = render_html([result | {"policy": policy} for policy in POLICIES])
    assert embedded(page)["policies"][0]["gantt"]["kind"] == "raster"
    assert len(page.encode()) < 3_000_000


def test_of_many_policies_the_best_come_first_and_every_winner_is_among_those_shown() -> None:
    results = [sample_result(policy) for policy in MANY]
    for number, result in enumerate(results):
        result["jct_s"]["mean"], result["makespan_s"] = 1000.0 - number, 50.0 + number
    page = render_html(results)
    names = [re.sub(r"<.*?>", "", re.findall(r"<th.*?</th>", row)[0]) for row in table_rows(page)]
    best = list(reversed(MANY))
    assert set(names) == set(MANY)
    assert names[0] == best[0]
    assert MANY[0] in names[:POLICIES_SHOWN]
    assert [name for name in names[POLICIES_SHOWN:] if name in best[: POLICIES_SHOWN - 4]] == []
    assert '"shown":8' in page


def test_eight_policies_keep_the_order_in_which_they_were_given() -> None:
    results = [sample_result(policy) for policy in reversed(POLICIES)]
    names = [re.sub(r"<.*?>", "", re.findall(r"<th.*?</th>", row)[0]) for row in table_rows(render_html(results))]
    assert names == list(reversed(POLICIES))
