"""Cases of published figures: verdicts follow their yardsticks, results are the same in every run, pages are made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fairway.core.errors import InputError
from fairway.reproduce import Case, DataFile, Figure, Findings, ResultTable, Setting, Yardstick, all_cases, chosen_cases
from fairway.reproduce.page import render_page
from fairway.reproduce.pages import filled, marks, picture_digest, picture_file, read_results, write_pages
from fairway.reproduce.run import FAILED, NO_DATA, NO_GPU, NOT_QUICK, RAN, reproduction_document, run_case, unexplained

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
TRACE = DataFile("some/trace.csv", "owner/name", "traces/trace.csv")


def figure(ours: float, yardstick: Yardstick, published: float | tuple[float, float] = 100.0, why: str = "") -> Figure:
    return Figure("what", published, ours, yardstick, why=why)


def case(name: str = "a-case", ours: float = 100.0, **about: object) -> Case:
    """A case with one figure, a table and a picture."""

    def run(setting: Setting) -> Findings:
        table = ResultTable(("policy", "s"), (("`fifo`", "1.0"),))
        return Findings((figure(ours, Yardstick.equal(0)),), {"runs": table}, {"cdf": "<svg>…</svg>"})

    given: dict[str, object] = {"run": run, "quick_cpu_s": 1.0} | about
    return Case(name, "A system", "a title", "a paper", "page.md", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "yardstick", "verdict"),
    [
        (100.4, Yardstick.equal(0), "met"),
        (100.6, Yardstick.equal(0), "not reached"),
        (104.9, Yardstick.within(0.05), "met"),
        (105.1, Yardstick.within(0.05), "not reached"),
        (94.9, Yardstick.within(0.05), "not reached"),
        (94.9, Yardstick.within(0.05, good="lower"), "better"),
        (105.1, Yardstick.within(0.05, good="lower"), "not reached"),
        (105.1, Yardstick.within(0.05, good="higher"), "better"),
        (1.0, Yardstick.at_most(), "met"),
        (100.1, Yardstick.at_most(), "not reached"),
        (1e9, Yardstick.at_least(), "met"),
        (99.9, Yardstick.at_least(), "not reached"),
    ],
)
def test_a_verdict_follows_the_rule_that_was_stated(ours: float, yardstick: Yardstick, verdict: str) -> None:
    assert figure(ours, yardstick).verdict == verdict


def test_a_published_range_is_met_inside_it() -> None:
    near = Yardstick.within(0.0, good="lower")
    assert [figure(ours, near, (2.0, 3.0)).verdict for ours in (1.0, 2.0, 3.0, 3.1)] == [
        "better",
        "met",
        "met",
        "not reached",
    ]


def test_a_figure_is_written_with_its_unit() -> None:
    assert Figure("", 1.26, 1234.5, Yardstick.equal(2), "×", 2).written(1234.5) == "1,234.50×"
    assert Figure("", 1.26, 1234.5, Yardstick.equal(2), "s", 0).written((1.0, 2.0)) == "1 to 2 s"


def test_a_figure_that_is_not_reached_for_no_known_reason_is_told() -> None:
    told = run_case(case(ours=90.0), Setting())
    assert unexplained([told]) == ["a-case: what is not reached"]

    def run(_: Setting) -> Findings:
        return Findings((figure(90.0, Yardstick.equal(0), why="the trace is not public"),))

    known = run_case(case(run=run), Setting())
    assert not unexplained([known])
    assert known["figures"][0]["verdict"] == "not reached"
    assert known["figures"][0]["why"] == "the trace is not public"


def test_a_case_says_why_it_did_not_run(tmp_path: Path) -> None:
    def fails(_: Setting) -> Findings:
        raise InputError("line 7 is damaged", path="trace.csv")

    assert run_case(case(run=None, gpu="benchmarks/gpu.py"), Setting())["state"] == NO_GPU
    assert run_case(case(quick_cpu_s=None), Setting(quick=True))["state"] == NOT_QUICK
    lacking = run_case(case(needs=(TRACE,)), Setting(tmp_path))
    assert (lacking["state"], lacking["fetch"]) == (NO_DATA, ["traces/trace.csv of owner/name as some/trace.csv"])
    failed = run_case(case(run=fails), Setting())
    assert (failed["state"], unexplained([failed])) == (FAILED, ["a-case: trace.csv: line 7 is damaged"])


def test_systems_and_cases_are_chosen_by_name_and_others_refused() -> None:
    assert {each.system for each in chosen_cases(["TIRESIAS"])} == {"Tiresias"}
    assert [each.name for each in chosen_cases(["tiresias-example"])] == ["tiresias-example"]
    assert chosen_cases([]) == all_cases()
    with pytest.raises(InputError, match=r"'tirsias'; did you mean 'Tiresias'"):
        chosen_cases(["tirsias"])


def test_every_system_has_a_quick_case_or_needs_a_gpu() -> None:
    systems = {each.system for each in all_cases()}
    quick = {each.system for each in all_cases() if each.quick_cpu_s is not None or each.run is None}
    assert systems == quick
    assert sum(each.cost_s(quick=True) for each in all_cases()) <= 120
    assert sum(each.cost_s(quick=False) for each in all_cases()) <= 900
    for each in all_cases():
        assert (DOCS / "policies" / each.page).is_file()


def test_what_can_be_derived_by_hand_is_met() -> None:
    for each in (each for each in all_cases() if each.name.endswith(("-example", "-courses"))):
        told = run_case(each, Setting(quick=True))
        assert told["state"] == RAN
        assert {one["verdict"] for one in told["figures"]} == {"met"}, each.name


def test_a_page_is_filled_between_its_marks_and_keeps_the_rest(tmp_path: Path) -> None:
    page = tmp_path / "policies" / "page.md"
    page.parent.mkdir()
    (tmp_path / "pictures").mkdir()
    page.write_text(
        "# A\n\n<!-- reproduce: a-case runs -->\nold\n<!-- end -->\n\n![c](../pictures/a_case_cdf.svg)\n\n"
        "<!-- reproduce: a-case -->\n<!-- end -->\n\n<!-- reproduce: another -->\n\nkept\n<!-- end -->\n"
    )
    told = run_case(case(), Setting())
    write_pages(tmp_path, [told], ["a-case"])
    text = page.read_text()
    assert "| policy | s |\n|---|--:|\n| `fifo` | 1.0 |\n" in text
    assert "| what | 100.0 | 100.0 | equal | met |" in text
    assert "old" not in text
    assert "kept" in text
    assert (tmp_path / "pictures" / "a_case_cdf.svg").read_text() == "<svg>…</svg>"
    assert not write_pages(tmp_path, [told], ["a-case"]), "a second time nothing changes"
    write_pages(tmp_path, [], ["a-case"])
    assert "a-case" in read_results(tmp_path), "what did not run now is kept"


def test_the_page_escapes_what_it_shows_and_allows_no_script() -> None:
    told = run_case(case(), Setting()) | {"title": "<script>alert(1)</script>"}
    page = render_page(reproduction_document([told], quick=False))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert re.search(r"default-src 'none'; style-src 'sha256-[\w+/=]+'", page)


def test_the_tables_of_our_pages_belong_to_the_results() -> None:
    results, known = read_results(DOCS), {each.name for each in all_cases()}
    asked = 0
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert filled(text, results) == text, f"{page.name} was edited by hand; run `make docs`"
        for mark in marks(text):
            names = set(mark[0].split("+")) - {"everything"}
            assert names <= known, f"{page.name} asks for {mark}"
            assert names <= results.keys(), f"{page.name} asks for {mark}, which has no results"
            asked += 1
    assert asked > 20
    assert set(results) <= known, "there are results of cases that do not exist any more"


def test_the_pictures_of_our_pages_belong_to_the_results() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for name, told in read_results(DOCS).items():
        for picture, digest in told["pictures"].items():
            path = DOCS / "pictures" / picture_file(name, picture)
            if f"pictures/{path.name}" in shown:
                assert picture_digest(path.read_text(encoding="utf-8")) == digest, f"{path.name} is not of this run"


def test_results_hold_nothing_that_was_timed() -> None:
    assert "cpu_s" not in json.dumps(read_results(DOCS))
