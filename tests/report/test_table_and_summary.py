"""The end-of-run table and the Markdown page."""

import re
from dataclasses import replace

import pytest

from allranks.report.merging import merge
from allranks.report.summary import WIDTH, render_summary, render_table, seconds

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


def test_no_line_is_wider_than_the_table(run_folder):
    job = f"{'c' * 60}/{'s' * 60}"
    run_folder.manifest(job)
    run_folder.both(job, {f"t.py::test_{'n' * 200}": {"outcome": "failed", "message": "m" * 300}}, started=0.0)
    text = render_table(merge(run_folder.path, environ={}))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "…" in text


def test_a_long_name_of_a_suite_takes_the_room_that_short_cells_leave(run_folder):
    job = f"gloo-w2-g0-file/{'s' * 25}"
    run_folder.manifest(job)
    run_folder.both(job, {"t.py::a": "passed"})
    head, row, *_ = render_table(merge(run_folder.path, environ={})).splitlines()
    assert row.split()[:2] == job.split("/")
    assert len(head) == len(row) == WIDTH


def test_skips_that_count_as_passed_are_said(run_folder):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {"t.py::a": {"outcome": "skipped", "message": "no NCCL", "skip_kind": "environment"}})
    merged = merge(run_folder.path, policy="pass", environ={})
    assert "1 environment skip(s) counted as passed" in render_table(merged)
    assert "1 environment skip(s) counted as passed" in render_summary(merged)


@pytest.mark.parametrize(("value", "shown"), [(0.004, "0.00 s"), (59.994, "59.99 s"), (245.4, "4 min 05 s")])
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
