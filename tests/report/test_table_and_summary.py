"""The end-of-run table and the Markdown page."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from allranks.outcomes import Outcome
from allranks.report.judged import CellSuite, JobSummary, MergedRun, Share
from allranks.report.merging import merge
from allranks.report.results import RankResult, TestVerdict
from allranks.report.summary import WIDTH, render_summary, render_table, seconds
from allranks.report.verdict import VerdictPolicy, verdict

ENV, TCP = "gloo-w2-g0-env/collectives", "gloo-w2-g0-tcp/collectives"


@pytest.fixture
def merged(run_folder):
    run_folder.manifest(ENV, TCP)
    run_folder.both(ENV, {"t.py::a": "passed", "t.py::b": {"outcome": "failed", "message": "boom | <b>\nsecond"}})
    run_folder.both(TCP, {"t.py::a": "skipped"})
    return merge(run_folder.path, environ={})


def test_the_table_has_a_row_for_each_cell_and_suite_and_a_total(merged):
    head, env, tcp, total, *_ = [line.split() for line in render_table(merged).splitlines()]
    assert head == ["cell", "suite", "tests", "passed", "failed", "errors", "skipped", "time"]
    assert env == ["gloo-w2-g0-env", "collectives", "2", "1", "1", "0", "0", "2.50", "s"]
    assert tcp == ["gloo-w2-g0-tcp", "collectives", "1", "0", "0", "0", "1", "2.50", "s"]
    assert total == ["total", "3", "1", "1", "0", "1", "5.00", "s"]


def test_the_table_names_the_leading_rank_and_the_first_line_of_its_message(merged):
    assert "  FAILURE gloo-w2-g0-env / collectives: t.py::b\n    rank 0 failed: boom | <b>" in render_table(merged)
    assert "second" not in render_table(merged)


def test_ten_failures_are_listed_and_the_rest_is_counted(run_folder):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {f"t.py::test_{n}": {"outcome": "failed", "message": f"m{n}"} for n in range(13)})
    text = render_table(merge(run_folder.path, environ={}))
    assert text.count("FAILURE") == 10
    assert "and 3 more: see junit.xml" in text


def test_failures_of_a_suite_that_say_the_same_are_listed_once(run_folder):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {f"t.py::test_{n}": {"outcome": "failed", "message": "the same"} for n in range(13)})
    text = render_table(merge(run_folder.path, environ={}))
    assert text.count("FAILURE") == 1
    assert "and 12 more tests of it with this message" in text


def test_no_line_is_wider_than_the_table_but_a_command_that_is_there_to_be_copied(run_folder):
    job = f"{'c' * 60}/{'s' * 60}"
    run_folder.manifest(job)
    run_folder.both(job, {f"t.py::test_{'n' * 200}": {"outcome": "failed", "message": "m" * 300}}, started=0.0)
    text = render_table(merge(run_folder.path, environ={}))
    *lines, command = text.splitlines()
    assert command.startswith("    again: allranks run ccc")
    assert command.endswith(f" -- t.py::test_{'n' * 200}")
    assert max(map(len, lines)) <= WIDTH
    assert "…" in text


def test_a_long_name_of_a_suite_takes_the_room_that_short_cells_leave(run_folder):
    job = f"gloo-w2-g0-file/{'s' * 25}"
    run_folder.manifest(job)
    run_folder.both(job, {"t.py::a": "passed"})
    head, row, *_ = render_table(merge(run_folder.path, environ={})).splitlines()
    assert row.split()[:2] == job.split("/")
    assert len(head) == len(row) == WIDTH


def test_columns_hold_a_million_tests_and_a_hundred_hours(merged):
    row = merged.suites[0]
    counts = replace(row.counts, **dict.fromkeys(("tests", "passed", "failed", "errors", "skipped"), 1_000_000))
    text = render_table(replace(merged, suites=(replace(row, counts=counts, elapsed=360_000.0),)))
    assert text.splitlines()[1].split()[2:] == ["1000000"] * 5 + ["100", "h", "00", "min"]
    assert len(text.splitlines()[1]) == WIDTH


def test_skips_that_count_as_passed_are_said(run_folder):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {"t.py::a": {"outcome": "skipped", "message": "no NCCL", "skip_kind": "environment"}})
    merged = merge(run_folder.path, policy="pass", environ={})
    assert "1 environment skip(s) counted as passed" in render_table(merged)
    assert "1 environment skip(s) counted as passed" in render_summary(merged)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.004, "0.00 s"), (59.994, "59.99 s"), (245.4, "4 min 05 s"), (5_400, "1 h 30 min")]
)
def test_times_are_shown_in_the_unit_a_reader_would_use(value: float, shown: str):
    assert seconds(value) == shown


def test_the_summary_has_failures_first_and_takes_their_text_literally(merged):
    text = merged.summary.read_text(encoding="utf-8")
    assert text.startswith("## allranks: 3 tests, 1 went wrong\n")
    assert r"rank 0 failed: boom \| \<b\>" in text
    assert text.index("boom") < text.index("| cell | suite |")
    assert r"| gloo-w2-g0-env | collectives | 2 | 1 | 1 | 0 | 0 | 2.50 s |" in text


def test_the_summary_stays_small_however_much_went_wrong(run_folder):
    run_folder.manifest(ENV)
    failed = {"outcome": "failed"}
    run_folder.both(ENV, {f"t.py::test_{n}": {**failed, "message": f"{n} " + "m" * 5_000} for n in range(500)})
    merged = merge(run_folder.path, environ={})
    assert len(render_summary(merged)) < 100_000
    assert "and 450 more" in render_summary(merged)


def test_the_summary_stays_below_what_a_ci_service_shows_and_has_what_went_wrong(merged):
    bad, good = merged.suites
    long = replace(merged, suites=(*[replace(good, cell=f"cell-{n}") for n in range(30_000)], bad))
    text = render_summary(long)
    assert len(text.encode()) < 1 << 20
    assert text.index("| gloo-w2-g0-env | collectives |") < text.index("| cell-0 |")
    assert re.search(r"\| and \d+ more \| in `report.html` \|", text)


def test_the_summary_stays_below_it_with_names_and_notes_of_any_length(merged):
    bad, good = merged.suites
    failure = replace(bad.failures[0], nodeid="n" * 1_000_000, place="p" * 1_000_000)
    noted = [replace(good, notes=("w" * 1000,)) for _ in range(2_000)]
    text = render_summary(replace(merged, suites=(replace(bad, failures=(failure,) * 50), *noted)))
    assert len(text.encode()) < 1 << 20
    assert re.search(r"- and \d+ more notes", text)


def test_tests_that_passed_and_were_expected_to_fail_are_named(run_folder):
    run_folder.manifest("gloo-w2/s")
    mixed = {0: "passed", 1: "xpassed"}
    for rank in range(2):
        run_folder.rank("gloo-w2/s", rank, {"t.py::both": "xpassed", "t.py::one": mixed[rank], "t.py::none": "passed"})
    merged = merge(run_folder.path, environ={})
    assert "gloo-w2 / s: expected to fail, and passed: t.py::both." in merged.notes
    assert merged.counts.passed == 3


def test_flaky_tests_are_said(merged):
    flaky = replace(merged.suites[0], counts=replace(merged.suites[0].counts, flaky=2))
    assert "2 flaky test(s)" in render_table(replace(merged, suites=(flaky,)))
    assert "2 flaky test(s)" in render_summary(replace(merged, suites=(flaky,)))


TRACE = """\
def test_b():
>       assert total == 6, "```` <b>"
E       AssertionError: ```` <b>

/repo/suite/t.py:31: AssertionError"""


@pytest.fixture
def with_traceback(run_folder):
    def make(text, nodeid="suite/t.py::test_b", count=1):
        run_folder.manifest(ENV)
        said = {"outcome": "failed", "text": text}
        tests = {f"{nodeid}{number or ''}": {**said, "message": f"no {number}"} for number in range(count)}
        run_folder.both(ENV, tests, spec={"agent": {"seed": 7}})
        return merge(run_folder.path, environ={})

    return make


def test_the_table_has_the_end_of_the_traceback_and_a_command(with_traceback):
    assert render_table(with_traceback(TRACE)).splitlines()[-6:] == [
        "  FAILURE gloo-w2-g0-env / collectives: suite/t.py::test_b",
        "    rank 0 failed: no 0",
        "      suite/t.py:31 in test_b",
        '          assert total == 6, "```` <b>"',
        "      AssertionError: ```` <b>",
        "    again: allranks run gloo-w2-g0-env --suite collectives --seed 7 -- suite/t.py::test_b",
    ]


def test_the_first_failures_alone_have_tracebacks_and_commands(with_traceback):
    merged = with_traceback(TRACE, count=30)
    assert render_table(merged).count("    again: ") == render_table(merged).count("suite/t.py:31 in test_b") == 5
    assert render_summary(merged).count("suite/t.py:31 in test_b") == 20
    assert sum(bool(failure.traceback) for failure in merged.suites[0].failures) == 20


def test_no_test_ends_the_fence_that_its_traceback_is_in(with_traceback):
    lines = with_traceback(TRACE).summary.read_text().splitlines()
    start = lines.index("  `````text")
    end = lines.index("  `````")
    assert [line for line in lines if "```` <b>" in line] == lines[start + 2 : end]
    assert lines[end + 2] == "  ```sh"


def test_a_command_that_no_one_could_read_is_left_out(with_traceback):
    merged = with_traceback(TRACE, nodeid=f"suite/t.py::test_{'n' * 5_000}")
    assert "again: " not in render_table(merged)


def test_results_from_elsewhere_have_a_traceback_and_no_command(write_ranks):
    case = "<testcase classname='a' name='b'><failure message='no'>/repo/a.py:3: ValueError</failure></testcase>"
    merged = merge(write_ranks("rank-0.xml", [case]), environ={})
    assert "      /repo/a.py:3" in render_table(merged)
    assert "again: " not in render_table(merged)


def test_what_befell_a_job_is_told_in_its_own_words(run_folder):
    run_folder.manifest(ENV)
    error = {"kind": "agent", "what": "It died.", "why": "of hunger", "remedy": "Feed it."}
    run_folder.job(ENV, error=error)
    text = render_table(merge(run_folder.path, environ={}))
    assert "    It died.\n      of hunger\n      Feed it.\n" in text
    assert "again: allranks run gloo-w2-g0-env --suite collectives" in text


def test_one_test_of_a_shard_runs_again_in_the_whole_suite():
    job = JobSummary(
        cell="c", suite="s@2of4", axes={"backend": "gloo"}, share=Share(suite="s", number=2, count=4), seed=0
    )
    assert job.again("t.py::x") == ["allranks", "run", "c", "--suite", "s", "--seed", "0", "--", "t.py::x"]
    assert job.again() == ["allranks", "run", "c", "--suite", "s@2of4", "--seed", "0"]


breakers = st.sampled_from(
    [
        "```", "````", "~~~", "\n", "\n\n", "\r", "</details>", "<script>", "# head", "- item", "  ", "    ", "| a |",
        "E   ", ">   ", "\n/repo/t.py:3: in x\n", "\n/repo/t.py:3: Error\n", '  File "/repo/t.py", line 3, in x\n',
        "\t", "\x0b", "\u2028", "\x85", "[a](b)", "<!--", "&amp;", "$x$", "@me", "*", "`", "---",
    ]
)  # fmt: skip


@given(st.lists(breakers | st.text(max_size=5), max_size=20).map("".join), st.lists(breakers, max_size=4).map("".join))
def test_whatever_a_test_says_the_summary_has_the_same_structure(text, name):
    suite = CellSuite(cell="c", suite="s", engine="process", tests=(case(f"suite/t.py::test_{name}", text),))
    run = MergedRun(folder=Path(), junit=Path(), page=Path(), summary=Path(), run_id="r", suites=(suite.row,))
    tokens = MarkdownIt("commonmark").enable("table").parse(render_summary(run))
    kinds = [token.type for token in tokens if token.level == 0 and token.nesting >= 0]
    assert kinds == ["heading_open", "bullet_list_open", "table_open"]
    inside = [token.type for token in tokens if token.level == 2 and token.nesting >= 0]
    assert inside[0] == "paragraph_open"
    assert set(inside[1:]) <= {"fence", "tr_open"}
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.content for child in inline if child.type == "html_inline"} == {"<br>"}
    fences = [token.content for token in tokens if token.type == "fence"]
    assert fences[-1].startswith("allranks run c --suite s -- ")


def case(nodeid, text):
    result = RankResult(nodeid=nodeid, classname="", name="t", rank=0, outcome=Outcome.FAILED, text=text, at=1.0)
    return TestVerdict(
        nodeid=nodeid, classname="", name="t", verdict=verdict([result], VerdictPolicy()), ranks=(result,)
    )
