"""The page in a real browser: what a reader sees and can do.

The ``page`` fixture checks in each test that no script breaks and no request leaves.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import Page
from runs import TRACE, case, failed, gloo_matrix, job, passed, rank, skipped, write_page

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import PhaseEnd
from allranks.report.merging import merge
from allranks.report.page import case_list
from allranks.report.rank_timeline import Collective, RankTimeline

pytestmark = pytest.mark.browser

SUM = "suites/collectives/test_sums.py::test_sum"
BARRIER = "suites/collectives/test_barriers.py::test_barrier[2 groups]"
LATE = "suites/collectives/test_barriers.py::test_late"


def some_tests(size: int, init: str) -> list[Any]:
    bad = failed(SUM, size, "AssertionError: 5.0 != 6.0", TRACE, stdout="step 0\n", stderr="a warning\n")
    return [
        bad if size == 4 else passed(SUM, size, 0.5),
        passed(BARRIER, size, 2.5 if init == "tcp" else 0.01),
        skipped(LATE, "Need at least 4 ranks", size) if size == 1 else passed(LATE, size),
    ]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """27 tests in nine cells: one fails where world_size is 4, one is skipped where it is 1."""
    return write_page(tmp_path, gloo_matrix(some_tests))


@pytest.fixture
def opened(page: Page, report: Path) -> Page:
    page.open(report)
    return page


def listed(page: Page) -> list[str]:
    return [
        f"{name} {place}" for name, place in zip(page.texts("#list .name b"), page.texts("#list .place"), strict=True)
    ]


def open_test(page: Page) -> None:
    page.until("document.querySelector('#detail h2')")


def test_the_matrix_shows_each_cell_and_suite(opened: Page) -> None:
    assert len(opened.texts("#matrix tbody tr")) == 9
    assert (
        opened.run("document.querySelector('#matrix [title^=\"gloo-w4-g0-env, collectives\"]').innerText") == "✕ 1 of 3"
    )


def test_equal_failures_of_several_cells_are_one(opened: Page) -> None:
    assert opened.texts("#failures .group h3 bdi") == ["AssertionError: 5.0 != 6.0"]
    assert "3 tests in 3 cells; rank 1" in opened.text("#failures .group")


def test_a_strip_has_the_numbers_of_ranks_that_went_wrong_and_the_count_of_others(opened: Page) -> None:
    assert opened.texts("#failures .group li:first-child .strip i") == ["A", "F1", "A\u00d72"]


@pytest.mark.parametrize("outcome", ["failed", "timed_out", "crashed"])
def test_the_chip_of_the_leading_rank_is_the_only_one_in_full_color(page: Page, tmp_path: Path, outcome: str) -> None:
    wrong = [rank(0, "failed", at=2.0, consequence=True), rank(1, outcome, at=1.0), rank(2, "failed", at=2.0)]
    timeline = RankTimeline(began=0.0, phases={}, collectives=())
    suite = job("c", "s", [case("t.py::test", wrong)], timelines={"t.py::test": timeline})
    page.open(write_page(tmp_path, [suite]), "#t=c/s/t.py::test")
    open_test(page)
    white = "e => getComputedStyle(e).color === 'rgb(255, 255, 255)'"
    for chips in ("#failures .group .strip i", ".squares button", ".who i"):
        assert page.run(f"[...document.querySelectorAll('{chips}')].map({white})") == [False, True, False]


def test_a_group_of_ranks_that_went_wrong_alike_sets_its_leading_one_apart(page: Page, tmp_path: Path) -> None:
    wrong = [rank(number, "failed", at=1.0 - number / 100, message="no") for number in range(3)]
    page.open(write_page(tmp_path, [job("c", "s", [case("t.py::test", wrong)])]))
    assert page.texts("#failures .group .strip i") == ["F0-1", "F2"]
    assert page.texts("#failures .group .strip .leads") == ["F2"]


def test_the_overview_explains_its_marks(opened: Page) -> None:
    assert [each.replace("\n", " ") for each in opened.texts("#failures .legend .key")] == [
        "F1T1 rank 1 has the primary failure", "F failed", "A aborted", "\u00d73 three ranks",
    ]  # fmt: skip
    assert [each.split()[0] for each in opened.texts("#matrix .legend .key")] == ["✕", "✓"]


def test_an_overview_without_failures_explains_the_marks_of_its_tests(page: Page, tmp_path: Path) -> None:
    page.open(write_page(tmp_path, [job("c", "s", [passed("t.py::test")])]))
    assert page.texts("#tests .legend .key")[0] == "✓ passed"
    assert page.texts("#failures .legend") == []


def test_a_count_of_zero_has_no_alarming_color(page: Page, tmp_path: Path) -> None:
    page.open(write_page(tmp_path, [job("c", "s", [passed("t.py::test")])]))
    color = "name => getComputedStyle(document.querySelector(name)).backgroundColor"
    colors = page.run(f"['#counts .v-F', '#counts .v-E', '#counts .v-S'].map({color})")
    assert len(set(colors)) == 1


@pytest.mark.parametrize("text", ["AssertionError: 5.0 != 6.0", TRACE])
def test_a_test_says_what_happened_once(page: Page, tmp_path: Path, text: str) -> None:
    bad = failed("t.py::test", 2, "AssertionError: 5.0 != 6.0", text)
    page.open(write_page(tmp_path, [job("c", "s", [bad])]), "#t=c/s/t.py::test")
    open_test(page)
    assert page.text("#detail").count("AssertionError: 5.0 != 6.0") == 1
    assert page.text("body").count("AssertionError: 5.0 != 6.0") == 2  # in the overview, and in the test


def test_a_group_of_which_no_test_is_listed_says_how_many_there_are(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_list, "FAILURES_BUDGET", -1)
    page.open(write_page(tmp_path, [job("c", "s", [failed(f"t.py::test_{number}") for number in range(5)])]))
    assert page.texts("#failures .group h3 bdi") == ["AssertionError: 1 != 2"]
    assert page.texts("#failures .group .extent") == ["5 tests; rank 1"]
    assert "Not listed: 5 failed. junit.xml, next to this page, has all of them." in page.text("#top")
    assert page.text("#shown") == "0 of 0 tests; 5 more are not listed"


def test_the_axis_to_blame_is_named_with_its_evidence(opened: Page) -> None:
    said = "Fails exactly where world_size >= 4: it fails in all 3 of these cells, and passes in all 6 others."
    assert opened.texts("#failures .blame") == [said]
    opened.click("#failures .group li a")
    open_test(opened)
    assert opened.texts("#detail .blame") == [said]


def test_the_page_opens_on_the_leading_group_with_the_users_own_frames(page: Page, tmp_path: Path) -> None:
    deep = "\n".join(f'  File "/x/site-packages/_pytest/m{n}.py", line {n}, in f{n}\n    call()' for n in range(30))
    own = '  File "t.py", line 7, in test\n    assert a == b'
    text = f"Traceback (most recent call last):\n{deep}\n{own}\nAssertionError: no"
    page.open(write_page(tmp_path, [job("c", "s", [failed("t.py::test", text=text), passed("t.py::other")])]))
    first = "document.querySelector('main section')"
    assert page.run(f"{first}.id") == "failures"
    assert page.run(f"{first}.querySelector('.group pre').textContent").startswith("t.py:7 in test")
    assert "m29.py" not in page.text("#failures")


def test_a_headline_opens_its_test(opened: Page) -> None:
    opened.click("#failures .group h3 a")
    open_test(opened)
    assert opened.text("#detail h2") == SUM


def test_a_good_run_opens_on_the_matrix(page: Page, tmp_path: Path) -> None:
    page.open(write_page(tmp_path, [job("c", "s", [passed("t.py::test")])]))
    assert page.run("document.querySelector('main section').id") == "matrix"


def test_the_end_of_its_output_is_beside_a_crash(page: Page, tmp_path: Path) -> None:
    lines = "\n".join(f"line {number}" for number in range(40))
    killed = case(
        "t.py::test", [rank(0, "crashed", at=1.0, message="killed by SIGKILL", text="stack", stdout=lines), rank(1)]
    )
    page.open(write_page(tmp_path, [job("c", "s", [killed])]), "#t=c/s/t.py::test")
    open_test(page)
    assert page.texts("#failures .group pre")[-1].splitlines() == [f"line {number}" for number in range(32, 40)]
    said = page.run("[...document.querySelectorAll('#detail .ranks:first-of-type pre')].map(e => e.textContent)")
    assert said == [lines, "stack"]


def test_a_crash_that_printed_nothing_says_so(page: Page, tmp_path: Path) -> None:
    killed = case("t.py::test", [rank(0, "crashed", at=1.0, message="killed by SIGKILL")])
    page.open(write_page(tmp_path, [job("c", "s", [killed])]), "#t=c/s/t.py::test")
    open_test(page)
    assert "It printed nothing in this test." in page.text("#detail")


def test_a_time_line_shows_phases_waits_and_collectives(page: Page, tmp_path: Path) -> None:
    phases = {1: (PhaseEnd(when="setup", outcome=Outcome.PASSED, seconds=0.25),)}
    told = RankTimeline(
        began=0.0,
        phases=phases,
        collectives=(Collective.of("default", 1, "all_reduce", {0: 0.3}),),
        passed=0,
        stdout="a\nb",
    )
    tests = [failed("t.py::test", stdout="a\nc")]
    page.open(write_page(tmp_path, [job("c", "s", tests, timelines={"t.py::test": told})]), "#t=c/s/t.py::test")
    open_test(page)
    waited = "rank 1 never called all_reduce #1; rank 0 called it 1.20 s before the end"
    assert page.texts(".waits") == [waited, waited]  # in the leading group, and in the test
    marks = "lane => [...lane.querySelectorAll('.track i')].map(e => e.title)"
    assert page.run(f"[...document.querySelectorAll('.lane')].map({marks})") == [
        [
            "not reported until it was stopped: <1 ms to 1.50 s",
            "in all_reduce #1, waiting for other ranks: 300 ms to 1.50 s",
            "all_reduce #1: 300 ms",
        ],
        ["set-up passed: <1 ms to 250 ms", "not reported until it ended: 250 ms to 1.00 s"],
    ]
    assert page.run("document.querySelector('.lane .ph-waits').style.left") == "20%"
    page.click("#detail .output summary")
    assert page.texts("#detail .times tbody tr") == ["0\t\u2013\t1.50 s\t300 ms", "1\tset-up 250 ms\t1.00 s\t\u2013"]
    assert page.run("[...document.querySelectorAll('.diff > *')].map(e => e.tagName + e.textContent)") == [
        "SMALL@ stdout", "SPAN a", "DEL-b", "INS+c",
    ]  # fmt: skip


def test_the_page_can_be_read_by_keys_alone(opened: Page) -> None:
    """Tab leads from the first link to a headline, Enter opens its test, and Tab leads on in that."""
    reached = []
    for _ in range(30):
        opened.press("Tab")
        reached.append(
            opened.run("document.activeElement.closest('h3') ? 'headline' : document.activeElement.className")
        )
        if reached[-1] == "headline":
            break
    assert reached[0] == "jump js-only"
    assert reached[-1] == "headline"
    opened.press("Enter")
    open_test(opened)
    opened.until("document.activeElement.id === 'detail-title'")
    opened.press("Tab")
    assert opened.run("document.querySelector('#detail').contains(document.activeElement)")
    opened.press("Escape")
    assert opened.run("Boolean(document.activeElement.closest('h3'))")


def test_print_shows_the_open_test_and_no_controls(page: Page, report: Path) -> None:
    page.open(report, f"#t={quote('gloo-w4-g0-env/collectives/' + SUM)}")
    open_test(page)
    page.send("Emulation.setEmulatedMedia", media="print")
    visible = "name => document.querySelector(name).checkVisibility()"
    assert page.run(f"['nav', '#tests', '#detail .copy'].map({visible})") == [False] * 3
    assert page.run(f"['h1', '#failures .group', '#matrix table', '#detail h2'].map({visible})") == [True] * 4
    assert page.run("getComputedStyle(document.querySelector('#detail')).position") == "static"
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_failures_lead_the_list(opened: Page) -> None:
    assert [each.startswith("test_sum") for each in listed(opened)[:3]] == [True] * 3


def test_search_finds_names_and_messages(opened: Page) -> None:
    opened.choose("#search", "TEST_sum w2-g0-tcp")
    assert listed(opened) == ["test_sum gloo-w2-g0-tcp / collectives"]
    opened.choose("#search", "5.0 != 6.0")
    assert len(listed(opened)) == 3
    opened.choose("#search", "no such thing")
    assert opened.text("#list") == "No tests match."


@pytest.mark.parametrize(
    ("selector", "value", "count"),
    [
        ("#filter-cell", "gloo-w1-g0-env", 3),
        ("#filter-axis-world_size", "2", 9),
        ("#filter-axis-init_method", "tcp", 9),
        ("#filter-reason", "Need at least 4 ranks", 3),
    ],
)
def test_a_filter_narrows_the_list(opened: Page, selector: str, value: str, count: int) -> None:
    opened.choose(selector, value)
    assert len(listed(opened)) == count
    assert opened.text("#shown").startswith(f"{count} of 27")
    opened.click("#clear")
    assert opened.text("#shown") == "27 of 27 tests"


def test_an_axis_with_one_value_is_no_filter(opened: Page) -> None:
    assert not opened.run("Boolean(document.querySelector('#filter-axis-backend'))")


def test_verdicts_can_be_chosen_together(opened: Page) -> None:
    opened.click("[data-verdict=F]")
    assert len(listed(opened)) == 3
    opened.click("[data-verdict=S]")
    assert len(listed(opened)) == 6
    opened.click("[data-verdict=F]")
    assert len(listed(opened)) == 3


def test_a_tile_of_the_matrix_shows_its_tests(opened: Page) -> None:
    opened.click('#matrix [title^="gloo-w4-g0-tcp, collectives"]')
    assert {each.split(" / ")[0].split()[-1] for each in listed(opened)} == {"gloo-w4-g0-tcp"}


def test_a_group_shows_all_its_failures(page: Page, tmp_path: Path) -> None:
    tests = [failed(f"t.py::test_{number}", 2, f"died at 0x{number:x}") for number in range(5)]
    page.open(write_page(tmp_path, [job("c", "s", [*tests, passed("t.py::other")])]))
    page.click("#failures .extent button")
    assert len(listed(page)) == 5


def test_the_filters_are_in_the_address(opened: Page, report: Path) -> None:
    opened.choose("#search", "late")
    opened.choose("#filter-axis-world_size", "4")
    opened.click("[data-verdict=P]")
    fragment = opened.run("location.hash")
    opened.go(report.parent / "report.html", "#")
    opened.go(report, "?again" + fragment)
    opened.until("document.documentElement.dataset.ready")
    assert len(listed(opened)) == 3
    assert opened.run("document.querySelector('#search').value") == "late"


@pytest.mark.parametrize("name", [BARRIER, "t.py::test[a/b c&t=x%41+ü]", "t.py::test[~2]", "t.py::test['\"<b>]"])
def test_every_test_has_a_link(page: Page, tmp_path: Path, name: str) -> None:
    path = write_page(
        tmp_path, [job("gloo-w2-g0-env", "s", [passed("t.py::other"), passed(name), passed("t.py::last")])]
    )
    page.open(path, f"#t={quote('gloo-w2-g0-env/s/' + name, safe='')}")
    open_test(page)
    assert page.text("#detail h2") == name


def test_two_tests_of_one_name_have_each_a_link(page: Page, tmp_path: Path) -> None:
    path = write_page(tmp_path, [job("c", "s", [passed("t.py::twice"), failed("t.py::twice")])])
    page.open(path, "#t=c/s/t.py::twice~2")
    open_test(page)
    assert page.text("#detail .badge") == "✕failed"


def test_a_link_to_a_test_that_is_not_there_says_so(page: Page, report: Path) -> None:
    page.open(report, "#t=nowhere/to/be::found")
    open_test(page)
    assert page.text("#detail h2") == "This test is not listed here"


def test_back_closes_the_test(opened: Page) -> None:
    opened.click("#list .row a")
    open_test(opened)
    opened.run("history.back()")
    opened.until("document.querySelector('#detail').hidden")
    assert opened.run("location.hash") == ""


def test_a_test_shows_what_each_rank_said(opened: Page) -> None:
    opened.click("#failures .group li a")
    open_test(opened)
    text = opened.run("document.querySelector('#detail').textContent")
    assert "rank 1 failed: AssertionError: 5.0 != 6.0" in text
    assert TRACE in text
    assert "step 0" in text
    assert "a warning" in text
    assert "stack of rank 3" in text
    assert opened.run("[...document.querySelectorAll('.squares button')].map(e => e.title)") == [
        "rank 0: aborted, <1 ms",
        "rank 1: failed, primary failure, 500 ms",
        "rank 2: aborted, <1 ms",
        "rank 3: aborted, <1 ms",
    ]


def test_a_rank_leads_to_its_words(opened: Page) -> None:
    opened.click("#failures .group li a")
    open_test(opened)
    opened.click(".squares button:nth-child(4)")
    assert opened.run("document.querySelector('[data-ranks=\"3\"]').open")


def test_earlier_attempts_are_shown(page: Page, tmp_path: Path) -> None:
    flaky = case(
        "t.py::flaky",
        [rank(0), rank(1)],
        earlier=[[rank(0, "failed", at=1, message="reset by peer", text="TRACE"), rank(1)]],
    )
    page.open(write_page(tmp_path, [job("c", "s", [flaky])]), "#t=c/s/t.py::flaky")
    open_test(page)
    assert page.texts("#detail .badge") == ["✓passed", "↻flaky"]
    assert "attempt 1" in page.text("#detail")
    assert "reset by peer" in page.text("#detail")


@pytest.mark.parametrize(
    ("nodeid", "command"),
    [
        ("a/t.py::test_x", "allranks run c --suite s -- a/t.py::test_x"),
        ("t.py::test[a b]", "allranks run c --suite s -- 't.py::test[a b]'"),
        ("t.py::test[it's $HOME `x`]", """allranks run c --suite s -- 't.py::test[it'"'"'s $HOME `x`]'"""),
        ("t.py::test[a\nb]", r"allranks run c --suite s -- $'t.py::test[a\u000ab]'"),
        ("t.py::test[a\u202eb]", r"allranks run c --suite s -- $'t.py::test[a\u202eb]'"),
        ("-p evil", "allranks run c --suite s -- './-p evil'"),
    ],
)
def test_the_command_that_runs_it_again_is_quoted(page: Page, tmp_path: Path, nodeid: str, command: str) -> None:
    page.open(write_page(tmp_path, [job("c", "s", [passed(nodeid)])]), f"#t={quote('c/s/' + nodeid, safe='')}")
    open_test(page)
    assert page.run("document.querySelector('#command').textContent") == command


def test_results_from_elsewhere_have_no_command(page: Page, tmp_path: Path) -> None:
    page.open(write_page(tmp_path, [job("c", "s", [passed("t.py::test")], engine="")]), "#t=c/s/t.py::test")
    open_test(page)
    assert not page.run("Boolean(document.querySelector('#command'))")


def test_long_output_is_cut_with_a_link_to_the_file(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "c" / "s" / "attempt-3"
    folder.mkdir(parents=True)
    for name in ("rank-0.xml", "rank-1.xml", "rank-1.log"):
        (folder / name).touch()
    test = failed("t.py::test", text="x" * 100_000)
    page.open(write_page(tmp_path, [job("c", "s", [test], attempt=3)]), "#t=c/s/t.py::test")
    open_test(page)
    links = "[...document.querySelectorAll('.ranks .hint a')].map(e => e.getAttribute('href'))"
    assert page.run(links) == ["cells/c/s/attempt-3/rank-1.xml", "cells/c/s/attempt-3/rank-1.log"]
    assert page.run("document.querySelector('#detail pre').textContent.length") < 5000


def test_the_slowest_lead_their_list(opened: Page) -> None:
    assert opened.texts("#slowest .name b")[:3] == ["test_barrier[2 groups]"] * 3
    assert opened.texts("#slowest .bars .time")[0] == "2.50 s"


def test_skips_that_count_as_passes_are_counted_by_reason(page: Page, tmp_path: Path) -> None:
    tests = [
        *(skipped(f"t.py::a{number}", "Need 4 GPUs", policy="pass") for number in range(3)),
        skipped("t.py::b", "Need NCCL", policy="pass"),
    ]
    page.open(write_page(tmp_path, [job("c", "s", tests)], policy="pass"))
    assert page.texts("#skips bdi") == ["Need 4 GPUs", "Need NCCL"]
    page.click("#skips li button")
    assert len(listed(page)) == 3
    assert "3 skipped, counts as passed" not in page.text("#counts")
    assert "4 skipped, counts as passed" in page.text("#counts").replace("\n", " ")


def test_keys_lead_through_the_failures(opened: Page) -> None:
    opened.press("n")
    open_test(opened)
    assert opened.text("#detail h2") == SUM
    first = opened.run("location.hash")
    opened.press("n")
    opened.until(f"location.hash !== {json.dumps(first)}")
    opened.press("p")
    opened.until(f"location.hash === {json.dumps(first)}")
    opened.press("Escape")
    assert opened.run("document.querySelector('#detail').hidden")


def test_keys_search_and_open(opened: Page) -> None:
    opened.press("/")
    opened.send("Input.insertText", text="late w1-g0")
    assert len(listed(opened)) == 3
    opened.press("ArrowDown")
    opened.press("j")
    opened.press("k")
    opened.press("ArrowDown")
    assert opened.run("document.activeElement.getAttribute('aria-activedescendant')") == "row-1"
    opened.press("Enter")
    open_test(opened)
    assert "gloo-w1-g0-tcp" in opened.text("#detail")
    opened.press("Escape")
    assert opened.run("document.activeElement.id") == "list"


def test_keys_are_explained(opened: Page) -> None:
    opened.press("?")
    assert opened.run("document.querySelector('#help').open")
    opened.press("Escape")
    opened.until("!document.querySelector('#help').open")


def test_a_long_list_has_only_the_rows_that_are_in_sight(page: Page, tmp_path: Path) -> None:
    page.open(write_page(tmp_path, [job("c", "s", [passed(f"t.py::test_{number:05}") for number in range(5000)])]))
    assert len(listed(page)) < 60
    page.run("document.querySelector('#list').scrollTop = 1e9")
    page.until("document.querySelector('#list').innerText.includes('test_04999')")
    assert len(listed(page)) < 60


@pytest.mark.parametrize("width", [360, 390, 768, 1400])
def test_nothing_sticks_out_on_any_screen(page: Page, report: Path, width: int) -> None:
    page.size(width, 800)
    page.open(report, f"#t={quote('gloo-w4-g0-env/collectives/' + SUM)}")
    open_test(page)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelector('#detail').scrollWidth <= document.querySelector('#detail').clientWidth")


def test_dark_is_dark(page: Page, report: Path) -> None:
    page.dark()
    page.open(report)
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"


def test_without_scripts_the_page_says_that_it_needs_one_and_where_else_to_read(page: Page, report: Path) -> None:
    page.without_script()
    page.go(report)
    text = page.text("main")
    assert "3 of 27 tests failed" in text
    assert "21 passed" in text
    assert "This page needs JavaScript; without it, read summary.md and junit.xml beside it." in text
    shown = "[...document.querySelectorAll('section')].filter((each) => each.checkVisibility()).map((each) => each.id)"
    assert page.run(shown) == []


def test_a_browser_that_cannot_unpack_says_so_and_names_other_files(page: Page, report: Path) -> None:
    page.send("Page.addScriptToEvaluateOnNewDocument", source="delete self.DecompressionStream")
    page.open(report)
    assert "This page cannot show its tests: this browser cannot unpack the tests" in page.text("#trouble")
    assert "Read summary.md and junit.xml beside it." in page.text("#trouble")
    assert "3 of 27 tests failed" in page.text("main")


def test_what_befell_a_job_leads_the_failures_in_the_order_of_the_exit_codes(page: Page, run_folder: Any) -> None:
    sick, lost, empty, bad = (f"gloo-w2-g0-{each}/s" for each in ("tcp", "env", "file", "x"))
    run_folder.manifest(bad, empty, lost, sick)
    run_folder.both(bad, {"t.py::bad": "failed"})
    run_folder.job(empty, error={"kind": "collection", "what": "No such module."})
    run_folder.job(sick, error={"kind": "infrastructure", "what": "A sick GPU."})
    page.open(merge(run_folder.path, environ={}).page)
    told = page.texts("#failures-body .group h3")
    order = ["A sick GPU.", "The job left no results", "No such module.", "failed"]
    assert [each for each, text in zip(order, told, strict=True) if each in text] == order


def test_an_empty_run_has_a_page(page: Page, tmp_path: Path) -> None:
    page.open(write_page(tmp_path, []))
    assert page.text("h1") == "This run has no tests"
    assert page.text("#list") == "No tests match."


HOSTILE = (
    "</script><script>hit('script')</script>",
    "<img src=x onerror=hit('img')>",
    "\"><svg onload=hit('svg')>",
    "javascript:hit('url')",
    "<!--<script>",
    "]]></style><style>*{display:none}",
    "\u2028hit('line')\u2029",
    "\ud800 half \udfff",
    "\x1b[31mred\x1b]8;;javascript:hit('osc')\x07link\x1b]8;;\x07\x1b[0m\x00\x07",
    "$policy ${style} {{script}} %s",
    "../../../etc/passwd",
    "\u202egnp.exe",
    "__proto__",
    "constructor",
)


def hostile_tests(text: str) -> list[Any]:
    return [
        failed(f"{text}::{text}", 2, text, f"{text}\n{text}", stdout=text, stderr=text),
        case(text, [rank(0), rank(1)], earlier=[[rank(0, "failed", at=1, message=text, text=text), rank(1)]]),
        skipped(f"skipped::{text}", text),
        passed(f"passed::{text}"),
    ]


def hostile_timeline(text: str) -> RankTimeline:
    phases = (PhaseEnd(when=text, outcome=Outcome.PASSED, seconds=0.1),)
    collectives = (Collective.of(text, 1, text, {0: 0.3}), Collective.of("default", 2, text, {0: 0.4}))
    return RankTimeline(
        began=0.0, phases={0: phases, 1: phases}, collectives=collectives, passed=0, stdout=f"-{text}", stderr=text * 9
    )


@pytest.fixture
def hostile(page: Page, tmp_path: Path) -> Path:
    """A page on which everything that can be named is hostile; ``hit`` records what runs."""
    page.send("Page.addScriptToEvaluateOnNewDocument", source="self.hits = []; self.hit = (how) => hits.push(how)")
    suites = [
        job(
            text,
            text,
            hostile_tests(text),
            axes={text: text, "backend": text},
            engine=text,
            image=text,
            notes=(text,),
            timelines={f"{text}::{text}": hostile_timeline(text)},
        )
        for text in HOSTILE
    ]
    return write_page(tmp_path, suites, run_id=" ".join(HOSTILE))


def test_nothing_hostile_executes_wherever_it_is_shown(page: Page, hostile: Path) -> None:
    page.open(hostile)
    assert page.run("rows = document.querySelectorAll('#failures .group').length") == len(HOSTILE)
    assert page.run("document.querySelectorAll('select.on').length") == 0
    assert page.text("#shown") == f"{4 * len(HOSTILE)} of {4 * len(HOSTILE)} tests"
    for at in range(len(HOSTILE) * 4):
        page.run(f"document.querySelector('#list').scrollTop = {34 * at}")
        page.until(f"document.querySelector('#row-{at} a')")
        page.click(f"#row-{at} a")
        page.until("document.querySelector('#detail h2 bdi')")
        page.run("document.querySelectorAll('#detail details').forEach(each => each.open = true)")
        page.press("Escape")
    assert page.run("hits") == []
    assert (
        page.run(
            "document.querySelectorAll('img, svg, iframe, object, embed, form, #detail script, main script').length"
        )
        == 0
    )
    assert page.run("document.scripts.length") == page.run(
        "document.querySelectorAll('script[type][id], script:last-of-type').length"
    )
    links = "[...document.querySelectorAll('[href]')].map(e => e.getAttribute('href'))"
    schemes = f"{links}.filter(link => !/^(#|cells\\/|junit.xml$|data:image)/.test(link))"
    assert page.run(schemes) == []


@pytest.mark.parametrize("axis", ["__proto__", "constructor", "a b&c"])
def test_an_axis_of_any_name_is_a_filter(page: Page, tmp_path: Path, axis: str) -> None:
    suites = [job(f"c{number}", "s", [passed("t")], axes={axis: number, "other": number}) for number in range(3)]
    page.open(write_page(tmp_path, suites))
    page.choose(f"[id='filter-axis-{axis}']", "1")
    assert page.texts("#list .place") == ["c1 / s"]
    page.open(tmp_path / "report.html", page.run("location.hash"))
    assert page.texts("#list .place") == ["c1 / s"]


def test_nothing_hostile_executes_without_the_page_s_own_script(page: Page, hostile: Path) -> None:
    page.go(hostile)
    assert page.run("hits") == []
    assert page.run("document.querySelectorAll('noscript').length") == 1


def test_an_injected_script_would_not_run(page: Page, report: Path) -> None:
    text = report.read_text().replace("<main>", "<main><script>document.title = 'hit'</script>")
    report.write_text(text)
    page.open(report)
    assert page.run("document.title") != "hit"
    assert page.events("Log.entryAdded")  # the policy's complaint, which is the point here
    page.browser.events.clear()
