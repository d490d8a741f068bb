"""The table as text, in terminals of any size and with any names."""

import io
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from allranks.runner.progress import STATES, Picture, Row
from allranks.runner.terminal import ranges, render, rows_that_fit

RUNNING = Row(
    job_id="gloo-w2-g0-env/collectives", state="running", collected=351, passed=30, skipped=5, bad=2,
    first_bad="suites/test_a.py::TestB::test_c[x]", gpus=(0, 1, 2, 6), seconds=3671,
)  # fmt: skip


def picture(*rows, failure=""):
    states = Counter(row.state for row in rows)
    tests = Counter(bad=sum(row.bad for row in rows), passed=sum(row.passed for row in rows))
    bad = sum(row.is_bad for row in rows)
    return Picture(rows=rows, states=states, tests=tests, bad_jobs=bad, first_failure=failure, seconds=5)


def drawn(picture, width, height):
    """The lines that a terminal would show, without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, markup=False, emoji=False, highlight=False)
    console.print(render(picture, width, height))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_wide_terminal_shows_everything_of_a_job():
    title, line, summary = drawn(picture(RUNNING), 120, 24)
    assert title.split() == ["job", "state", "tests", "passed", "skipped", "bad", "GPUs", "time", "first", "bad"]
    assert line.split() == [
        "gloo-w2-g0-env/collectives", "running", "37/351", "30", "5", "2", "0-2,6", "1:01:11", "test_c[x]",
    ]  # fmt: skip
    assert summary == "jobs: 1 running (1 bad); tests: 2 bad, 30 passed; 0:05"


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (80, ["gloo-w2-g0-env/collectives", "running", "37/351", "30", "2", "0-2,6", "1:01:11"]),
        (60, ["gloo-w2-g0-env/collectives", "running", "37/351", "2", "1:01:11"]),
        (45, ["gloo-w2-g0-env/collect…", "running", "37/351", "2"]),
        (30, ["gloo-w2-g0-env/colle…", "running"]),
        (12, ["gloo-w2-g0-…"]),
    ],
)
def test_a_narrow_terminal_does_without_what_matters_least(width, words):
    assert drawn(picture(RUNNING), width, 24)[1].split() == words


def test_what_no_job_has_has_no_column():
    row = Row(job_id="a/b", state="waiting")
    assert drawn(picture(row), 120, 24)[0].split() == ["job", "state"]


def test_trouble_of_a_job_is_said_in_the_place_of_its_first_bad_test():
    row = Row(job_id="a/b", state="done", trouble="The image cannot be made.", bad=1, first_bad="t")
    assert drawn(picture(row), 120, 24)[1].endswith("The image cannot be made.")


def test_the_first_failure_has_three_lines_at_most():
    found = drawn(picture(RUNNING, failure="rank 1 failed in t: " + "x" * 500), 60, 24)
    assert found[3].startswith("rank 1 failed in t: xx")
    assert len(found) == 6
    assert found[5].endswith("x…")


@pytest.mark.parametrize("name", ["[bold]a[/bold]/s", "gloo[/]/s", "a[red]", ":smile:/s", "\\[x]"])
def test_names_with_markup_are_shown_as_they_are(name):
    row = Row(job_id=name, state="running", bad=1, first_bad=f"f.py::test[{name}]")
    found = drawn(picture(row, failure=f"{name}: bad"), 120, 24)
    assert found[1].startswith(name)
    assert f"test[{name}]" in found[1]
    assert found[3] == f"{name}: bad"


def test_nothing_that_a_terminal_would_obey_comes_through():
    row = Row(job_id="a\x1b[2Jb\nc/s", state="done", trouble="\x07no\r\x1b]0;x\x07")
    assert "\x1b" not in "".join(drawn(picture(row, failure="\x1b[31mred\x1b[0m"), 100, 24))


NAMES = st.text(max_size=60)
ROWS = st.builds(
    Row,
    job_id=NAMES,
    state=st.sampled_from(STATES),
    collected=st.none() | st.integers(0, 10**6),
    passed=st.integers(0, 10**6),
    bad=st.integers(0, 9),
    first_bad=NAMES,
    trouble=NAMES,
    gpus=st.lists(st.integers(0, 15), unique=True).map(tuple),
    seconds=st.none() | st.integers(0, 10**6),
)


@given(st.lists(ROWS, max_size=30), NAMES, st.integers(1, 160), st.integers(1, 40))
def test_no_table_is_wider_or_higher_than_its_terminal(rows, failure, width, height):
    shown = picture(*rows[: rows_that_fit(height, jobs=len(rows))], failure=failure)
    found = drawn(shown, width, height)
    assert all(cell_len(line) <= width for line in found)
    assert len(found) < height or height <= 5


@pytest.mark.parametrize(("height", "rows"), [(24, 18), (7, 1), (3, 0), (300, 40)])
def test_rows_leave_room_for_what_is_said_below_them(height, rows):
    assert rows_that_fit(height, jobs=40) == rows


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((5, 0, 1, 7, 8), "0-1,5,7-8")]
)
def test_numbers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text
