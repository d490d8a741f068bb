"""The end-of-run table and the Markdown page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from allranks.protocol.outcomes import Outcome
from allranks.protocol.repetitions import RepetitionTally
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.judged import CellSuite, JobSummary, MergedRun, Share
from allranks.report.merging import merge
from allranks.report.results import RankResult, TestVerdict
from allranks.report.run_files import JobRecord, as_json
from allranks.report.summary import WIDTH, render_summary, render_table, seconds

ENV, TCP = "gloo-w2-g0-env/collectives", "gloo-w2-g0-tcp/collectives"


def word(number):
    """A word for a number: failures that differ by numbers alone are one group."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


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


def test_rows_and_failures_are_colored_by_their_result(merged):
    text = render_table(merged, lambda text, color: f"<{color}>{text}</>")
    colors = [re.match("(?:<(red|green|yellow)>)?(.*?)(?:</>)?$", line).groups() for line in text.splitlines()]
    assert [color for color, line in colors if color or line.startswith("cell")] == [
        *(None, "red", "yellow", "red"),  # the head, a job with a failure, one whose test was skipped, and the total
        *("red", "red"),  # the name of the failed test, and the message
    ]


def test_ten_failures_are_listed_and_the_rest_is_counted(run_folder):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {f"t.py::test_{n}": {"outcome": "failed", "message": f"m{n}"} for n in range(13)})
    text = render_table(merge(run_folder.path, environ={}))
    assert text.count("FAILURE") == 10
    assert "and 3 more: see junit.xml" in text


def test_failures_that_say_the_same_but_for_numbers_are_listed_once_with_their_cells_and_ranks(run_folder):
    run_folder.manifest(ENV, TCP)
    for job in (ENV, TCP):
        tests = {f"t.py::test_{n}": f"Mismatched elements: {n} / 1024" for n in range(13)}
        run_folder.job(job, collected=list(tests))
        run_folder.rank(job, 0, dict.fromkeys(tests, "passed"))
        run_folder.rank(job, 1, {test: {"outcome": "failed", "message": words} for test, words in tests.items()})
    merged = merge(run_folder.path, environ={})
    told, extent = (
        "rank 1 failed: Mismatched elements: 0 / 1024",
        "(26 tests in 2 cells; rank 1; also t.py::test_1, t.py::test_2, …)",
    )
    assert render_table(merged).count("FAILURE") == 1
    assert f"    {told}\n    {extent}\n" in render_table(merged)
    text = merged.summary.read_text()
    assert f"<b>failure</b> {told} {extent}</summary>" in text
    assert "\n<br>in gloo-w2-g0-env, gloo-w2-g0-tcp\n" in text


def test_no_line_is_wider_than_the_table_but_a_command_that_is_there_to_be_copied(run_folder):
    job = f"{'c' * 60}/{'s' * 60}"
    run_folder.manifest(job)
    run_folder.both(job, {f"t.py::test_{'n' * 200}": {"outcome": "failed", "message": "m" * 300}}, started=0.0)
    text = render_table(merge(run_folder.path, environ={}))
    *lines, command = text.splitlines()
    assert command.startswith("    rerun: allranks run ccc")
    assert command.endswith(f" -- t.py::test_{'n' * 200}")
    assert max(map(len, lines)) <= WIDTH
    assert "…" in text


@pytest.mark.parametrize("padding", range(60, 100, 7))
@pytest.mark.parametrize(
    "word", ["/home/me/my-checkout/t-x.py:8", "gloo-w2-g0-env", "--ranks-timeout", "time-out", "test_x[a-b-c]"]
)
def test_no_line_ends_within_a_word_or_a_path(run_folder, padding, word):
    run_folder.manifest(ENV)
    message = f"{'x' * padding} {word} and the rest"
    run_folder.both(ENV, {"t.py::test_it": {"outcome": "failed", "message": message}}, started=0.0)
    assert word in render_table(merge(run_folder.path, environ={})).split()


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
    assert "1 environment skip counts as passed" in render_table(merged)
    assert r"1 environment skip counts as passed" in render_summary(merged, {})


@pytest.mark.parametrize(
    ("value", "shown"), [(0.004, "0.00 s"), (59.994, "59.99 s"), (245.4, "4 min 05 s"), (5_400, "1 h 30 min")]
)
def test_times_are_shown_in_the_unit_a_reader_would_use(value: float, shown: str):
    assert seconds(value) == shown


def test_the_summary_has_the_verdict_then_cells_then_failures_whose_text_it_takes_literally(merged):
    text = merged.summary.read_text(encoding="utf-8")
    assert text.startswith(
        "## allranks: 3 tests, 1 failed\n\n"
        "1 failed, 1 passed, 1 skipped; jobs took 5.00 s, of which tests took 0.75 s. <br>\n"
        "[report.html](report.html) · [junit.xml](junit.xml)\n"
    )
    assert "<details open><summary><b>failure</b> rank 0 failed: boom | &lt;b&gt; (all 2 ranks)</summary>" in text
    assert text.index("| cell | suite |") < text.index("boom")
    assert r"| gloo-w2-g0-env | collectives | 2 | 1 | 1 | 0 | 0 | 2.50 s |" in text


@pytest.mark.thorough
def test_the_summary_stays_small_however_much_went_wrong(run_folder):
    run_folder.manifest(ENV)
    failed = {"outcome": "failed"}
    run_folder.both(ENV, {f"t.py::test_{n}": {**failed, "message": f"{word(n)} " + "m" * 5_000} for n in range(500)})
    merged = merge(run_folder.path, environ={})
    assert len(render_summary(merged, {})) < 100_000
    assert "450 more" in render_summary(merged, {})


def test_the_summary_stays_below_what_a_ci_service_shows_and_has_what_went_wrong(merged):
    bad, good = merged.suites
    long = replace(merged, suites=(*[replace(good, cell=f"cell-{n}") for n in range(30_000)], bad))
    text = render_summary(long, {})
    assert len(text.encode()) < 1 << 20
    assert text.index("| gloo-w2-g0-env | collectives |") < text.index("| cell-0 |")
    assert re.search(r"\| and \d+ more \| in `report.html` \|", text)


def test_the_summary_stays_below_it_with_names_and_notes_of_any_length(merged):
    bad, good = merged.suites
    failure = replace(bad.failures[0], nodeid="n" * 1_000_000, job="p" * 1_000_000)
    noted = [replace(good, notes=(f"{n}{'w' * 1000}",)) for n in range(2_000)]
    text = render_summary(replace(merged, suites=(replace(bad, failures=(failure,) * 50), *noted)), {})
    assert len(text.encode()) < 1 << 20
    assert re.search(r"- and \d+ more\n", text)


def test_tests_that_passed_and_were_expected_to_fail_are_named(run_folder):
    run_folder.manifest("gloo-w2/s")
    mixed = {0: "passed", 1: "xpassed"}
    for rank in range(2):
        run_folder.rank("gloo-w2/s", rank, {"t.py::both": "xpassed", "t.py::one": mixed[rank], "t.py::none": "passed"})
    merged = merge(run_folder.path, environ={})
    assert "gloo-w2 / s: expected to fail, but passed: t.py::both." in merged.notes
    assert merged.counts.passed == 3


def test_flaky_tests_are_named(run_folder):
    run_folder.manifest(ENV)
    names = [f"t.py::test_{letter}" for letter in "abcdef"]
    for number, outcome in ((1, "failed"), (2, "passed")):
        run_folder.job(ENV, number=number, collected=names)
        for rank in range(2):
            run_folder.rank(ENV, rank, dict.fromkeys(names, outcome), number=number)
    merged = merge(run_folder.path, environ={})
    said = " ".join(render_table(merged).split())
    place = "gloo-w2-g0-env / collectives"
    assert (
        f"6 flaky or fixed tests, which failed in an earlier attempt but not in the last one: {place}: t.py::test_a,"
        in said
    )
    assert said.partition("t.py::test_d")[2].startswith(" and 2 more.")
    text = merged.summary.read_text()
    assert text.count("t.py::test\\_") == 6
    assert "<details><summary>6 flaky or fixed tests:" in text


def test_on_github_the_summary_links_to_the_artifacts_of_its_run(merged):
    environ = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_SERVER_URL": "https://git.example",
        "GITHUB_REPOSITORY": "me/mine",
        "GITHUB_RUN_ID": "7",
    }
    link = "[artifacts of this run](https://git.example/me/mine/actions/runs/7#artifacts)"
    assert f"`report.html` · `junit.xml` · {link}" in render_summary(merged, environ)
    assert "](report.html)" in render_summary(merged, environ | {"GITHUB_RUN_ID": "7) <b>"})


def test_a_group_names_the_axis_to_blame(run_folder):
    cells = [(size, init) for size in (1, 2, 4) for init in ("env", "tcp", "file")]
    jobs = {f"gloo-w{size}-g0-{init}/s": (size, init) for size, init in cells}
    axes = {job.partition("/")[0]: {"world_size": size, "init_method": init} for job, (size, init) in jobs.items()}
    run_folder.manifest(*jobs, cells=axes)
    for job, (size, _) in jobs.items():
        run_folder.job(job, world_size=size, collected=["t.py::x"])
        for rank in range(size):
            said = {"outcome": "failed", "message": f"off by {rank}"} if size == 4 else "passed"
            run_folder.rank(job, rank, {"t.py::x": said}, world_size=size)
    merged = merge(run_folder.path, environ={})
    told = "3 tests in 3 cells; all 4 ranks; fails exactly where world_size >= 4"
    assert f"({told})" in render_table(merged)
    assert f"({told.replace('>', '&gt;')})</summary>" in merged.summary.read_text()
    (group,) = merged.only({"gloo-w4-g0-env/s"}).failures
    assert (group.more, group.cells) == (0, ("gloo-w4-g0-env",))
    assert group.impact == "all 4 ranks; fails exactly where world_size >= 4"


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
        tests = {f"{nodeid}{number or ''}": {**said, "message": f"no {word(number)}"} for number in range(count)}
        run_folder.both(ENV, tests, spec={"agent": {"seed": 7}})
        return merge(run_folder.path, environ={})

    return make


def test_the_table_has_the_end_of_the_traceback_and_a_command(with_traceback):
    assert render_table(with_traceback(TRACE)).splitlines()[-7:] == [
        "  FAILURE gloo-w2-g0-env / collectives: suite/t.py::test_b",
        "    rank 0 failed: no a",
        "    (all 2 ranks)",
        "      suite/t.py:31 in test_b",
        '          assert total == 6, "```` <b>"',
        "      E   AssertionError: ```` <b>",
        "    rerun: allranks run gloo-w2-g0-env --suite collectives --seed 7 -- suite/t.py::test_b",
    ]


def test_the_lines_of_an_exception_are_red(with_traceback):
    lines = render_table(with_traceback(TRACE), lambda text, color: f"<{color}>{text}</>").splitlines()
    assert lines[-4:-1] == [
        "      suite/t.py:31 in test_b",
        '          assert total == 6, "```` <b>"',
        "<red>      E   AssertionError: ```` <b></>",
    ]


def test_the_first_failures_alone_have_tracebacks_and_commands(with_traceback):
    merged = with_traceback(TRACE, count=30)
    assert render_table(merged).count("    rerun: ") == render_table(merged).count("suite/t.py:31 in test_b") == 5
    assert render_summary(merged, {}).count("suite/t.py:31 in test_b") == 20
    assert sum(bool(failure.traceback) for failure in merged.suites[0].failures) == 20


def test_no_test_ends_the_fence_that_its_traceback_is_in(with_traceback):
    lines = with_traceback(TRACE).summary.read_text().splitlines()
    start = lines.index("`````text")
    end = lines.index("`````")
    assert [line for line in lines if "```` <b>" in line] == lines[start + 2 : end]
    assert lines[end + 2] == "```sh"


def test_a_command_that_no_one_could_read_is_left_out(with_traceback):
    merged = with_traceback(TRACE, nodeid=f"suite/t.py::test_{'n' * 5_000}")
    assert "rerun: " not in render_table(merged)


def test_results_from_elsewhere_have_a_traceback_and_no_command(write_ranks):
    case = "<testcase classname='a' name='b'><failure message='no'>/repo/a.py:3: ValueError</failure></testcase>"
    merged = merge(write_ranks("gloo-w1-g0-env/s/rank-0.xml", [case]), environ={})
    assert "      /repo/a.py:3" in render_table(merged)
    assert "rerun: " not in render_table(merged)


def test_what_befell_a_job_is_told_in_its_own_words(run_folder):
    run_folder.manifest(ENV)
    error = {"kind": "agent", "what": "It died.", "why": "of hunger", "remedy": "Feed it."}
    run_folder.job(ENV, error=error)
    text = render_table(merge(run_folder.path, environ={}))
    assert "    It died.\n      of hunger\n      Feed it.\n" in text
    assert "rerun: allranks run gloo-w2-g0-env --suite collectives" in text


def test_one_test_of_a_shard_runs_again_in_the_whole_suite():
    job = JobSummary(
        cell="c", suite="s@2of4", axes={"backend": "gloo"}, share=Share(suite="s", number=2, count=4), seed=0
    )
    assert job.rerun_command("t.py::x") == ["allranks", "run", "c", "--suite", "s", "--seed", "0", "--", "t.py::x"]
    assert job.rerun_command() == ["allranks", "run", "c", "--suite", "s@2of4", "--seed", "0"]


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
    tokens = MarkdownIt("commonmark").enable("table").parse(render_summary(run, {}))
    kinds = [token.type for token in tokens if token.level == 0 and token.nesting >= 0]
    assert kinds[:5] == ["heading_open", "paragraph_open", "table_open", "html_block", "paragraph_open"]
    assert kinds[-1] == "html_block"
    assert set(kinds[5:-1]) <= {"fence"}
    first, last = (token.content for token in tokens if token.type == "html_block")
    assert re.fullmatch(r"<details open><summary><b>failure</b> [^<>]*</summary>\n", first)
    assert last == "</details>\n"
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.content for child in inline if child.type == "html_inline"} == {"<br>"}
    fences = [token.content for token in tokens if token.type == "fence"]
    assert fences[-1].startswith("allranks run c --suite s -- ")


def case(nodeid, text):
    result = RankResult(nodeid=nodeid, classname="", name="t", rank=0, outcome=Outcome.FAILED, text=text, at=1.0)
    return TestVerdict(
        nodeid=nodeid, classname="", name="t", verdict=verdict([result], VerdictPolicy()), ranks=(result,)
    )


def test_rates_under_torchs_runner_stand_beside_those_of_allranks(run_folder):
    run_folder.manifest(ENV)
    told = RepetitionTally(runs=100, bad=40, beside_runs=90, beside_bad=3, beside="python x.py")
    alone = RepetitionTally(runs=9, beside="it is skipped there")
    repeated = as_json(JobRecord(world_size=2, repeated={"t.py::a": told, "t.py::b": alone}))["repeated"]
    run_folder.both(ENV, {"t.py::a": "failed", "t.py::b": "passed"}, repeated=json.loads(json.dumps(repeated)))
    merged = merge(run_folder.path, environ={})
    table = render_table(merged).partition("Failure rates under allranks")[2].splitlines()
    assert table[1] == "  gloo-w2-g0-env: t.py::a"
    assert table[2].split("  ")[2:4] == ["40 of 100: 40 % (30.9 to 49.8 %)", " 3 of 90: 3.3 % (1.1 to 9.3 %)"]
    assert table[2].endswith("it fails more often under allranks, confidence over 99.9 %")
    assert "t.py::b" not in "".join(table[3:4])
    rows = [line for line in render_summary(merged, {}).splitlines() if "fails more often" in line]
    assert len(rows) == 1
    assert rows[0].count(" | ") == 3


def test_tests_that_a_stopped_job_did_not_run_are_counted_apart_from_skips(run_folder):
    run_folder.manifest(ENV)
    tests = {"t.py::test_a": "passed", "t.py::test_b": {"outcome": "skipped", "message": "no GPU"}}
    run_folder.both(ENV, tests, collected=[*tests, "t.py::test_c"], not_run=["t.py::test_c"], stop_reason="-x")
    merged = merge(run_folder.path, environ={})
    assert merged.counts.words == "1 passed, 1 skipped, 1 not run"
    for text in (render_table(merged), merged.summary.read_text()):
        assert "1 of 2 skipped tests was never started." in text
