"""What the page carries of the timeline of a failed test."""

import json

import pytest
from runs import case, failed, job, rank, write_page

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import PhaseEnd
from allranks.report.page.timeline_view import MOST_LINES, MOST_ROWS, MOST_SHOWN, output_diff, timeline_rows
from allranks.report.rank_timeline import Collective, RankTimeline


def timeline(*collectives, **more):
    return RankTimeline(began=0.0, collectives=tuple(collectives), **more)


def all_reduce(number, **entered):
    return Collective.of("default", number, "all_reduce", {int(name[4:]): at for name, at in entered.items()})


def test_a_row_has_phases_waits_and_collectives_in_milliseconds():
    phases = {1: (PhaseEnd(when="setup", outcome=Outcome.PASSED, seconds=0.25),)}
    told = timeline_rows(timeline(all_reduce(1, rank0=0.3), phases=phases), failed("t"))
    assert told["e"] == 1500
    assert told["r"] == [
        [0, "aborted", 1500, [], [[300.0, 1500, "all_reduce #1"]]],
        [1, "failed", 1000, [["setup", "passed", 250.0]], []],
    ]
    assert told["c"] == [["all_reduce #1", [[0, 300.0]]]]
    assert told["s"] == ["rank 1 never called all_reduce #1; rank 0 called it 1.20 s before the end"]


def test_of_many_ranks_the_telling_ones_have_rows():
    entered = {f"rank{number}": 0.1 for number in range(64)} | {"rank40": 0.9, "rank41": 0.05}
    told = timeline_rows(timeline(all_reduce(1, **entered)), failed("t", 64))
    rows = [row[0] for row in told["r"]]
    assert len(rows) == MOST_ROWS
    assert {1, 40, 41} <= set(rows)
    assert told["n"] == 64 - MOST_ROWS
    assert {rank for _, entered in told["c"] for rank, _ in entered} == set(rows)


def printed(own, other, passed=None, **more):
    results = [
        rank(0, "aborted", at=1.5, stdout=other, consequence=True),
        rank(1, "failed", at=1.0, stdout=own, **more),
    ]
    return output_diff(passed, case("t", results))


def test_the_outputs_of_the_leading_rank_and_of_one_that_passed_are_compared():
    passed = timeline(passed=3, stdout="rank 3: step 0\nloss 3.5\nat 0x7f3a\nend\n")
    told = printed("rank 1: step 0\nloss nan\nat 0x7f1b\nend\n", "other", passed)
    assert told == {
        "o": 3,
        "w": "passed",
        "t": ["@ stdout", " rank 1: step 0", "-loss 3.5", "+loss nan", " at 0x7f1b", " end"],
    }


def test_without_a_rank_that_passed_one_that_was_stopped_is_compared():
    assert printed("a\nb", "a")["o"] == 0


@pytest.mark.parametrize(
    ("own", "other"), [("rank 1 at 10:11:12.5 pid 77", "rank 0 at 10:11:13.9 pid 78"), ("x\n", "x")]
)
def test_what_differs_between_any_two_ranks_is_no_difference(own, other):
    assert printed(own, other) == {"o": 0, "w": "aborted"}


def test_ranks_that_printed_nothing_are_not_compared():
    assert printed("", "") == {}


def test_a_difference_of_any_size_is_bounded():
    told = printed("x" * 10**6 + "\n" + "\n".join(map(str, range(10**5))), "\n".join("abc" * 10**5))
    assert len(told["t"]) == MOST_SHOWN + 1
    assert max(map(len, told["t"])) < 400
    assert MOST_LINES == 200


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x1b[0m", "\ud800 half \udfff", "</script><script>alert(1)</script>", "\x00"]
)
def test_hostile_output_is_carried_as_text(tmp_path, unpacked, text):
    wrong = failed("t.py::test", stdout=text)
    page = write_page(
        tmp_path,
        [job("c", "s", [wrong], timelines={"t.py::test": timeline(all_reduce(1, rank0=0.1), passed=2, stdout="x")})],
    )
    assert "<script>alert" not in page.read_text()
    detail = unpacked(page)["chunks"][0][0]
    assert detail["x"]["w"] == "passed"
    assert json.dumps(detail).isascii()
    assert not any(sign < " " and sign != "\n" for line in detail["x"]["t"] for sign in line)


def test_a_course_of_no_test_changes_nothing(tmp_path, unpacked):
    page = write_page(tmp_path, [job("c", "s", [failed("t.py::test")], timelines={"other": timeline()})])
    assert "w" not in unpacked(page)["chunks"][0][0]
