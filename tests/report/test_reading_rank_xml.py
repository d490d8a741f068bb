"""What the reader makes of XML that is ours, of XML from elsewhere, and of what is no XML at all."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.skip_codes import installed_skips, skip_of_text
from allranks.report.rank_xml import RankReader

Write = Callable[[str, Sequence[str]], Path]

SUITE = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("not here")
@pytest.mark.xfail(reason="known")
def test_expected(): raise ValueError("known")
@pytest.mark.xfail(strict=True)
def test_strict(): pass
@pytest.fixture
def broken():
    yield
    raise RuntimeError("tear-down broke")
def test_tears_down(broken): pass
def test_fails_and_tears_down(broken): assert not "call broke"
@pytest.fixture
def unready(): raise OSError("set-up broke")
def test_sets_up(unready): pass
@pytest.mark.parametrize("x", ["a::b"])
class TestGroup:
    def test_inside(self, x): print("said")
"""


def test_real_pytest_xml_is_read_with_every_outcome(tmp_path: Path):
    (tmp_path / "test_real.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml"]
    done = subprocess.run([*command, "test_real.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    file = RankReader().read(tmp_path / "junit.xml", rank=3)
    assert (file.rank, file.problem) == (3, "")
    assert {result.name: result.outcome.value for result in file.results} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
        "test_expected": "xfailed",
        "test_strict": "failed",
        "test_tears_down": "errored",
        "test_fails_and_tears_down": "errored",
        "test_sets_up": "errored",
        "test_inside[a::b]": "passed",
    }


def test_call_and_tear_down_of_one_test_are_folded_and_both_are_told(write_ranks: Write):
    root = write_ranks(
        "rank-0.xml",
        [
            '<testcase classname="t" name="x" time="1"><failure message="call broke">trace</failure></testcase>',
            '<testcase classname="t" name="x" time="2"><error message="tear-down broke">other</error></testcase>',
        ],
    )
    (result,) = RankReader().read(root / "rank-0.xml").results
    assert (result.outcome, result.message, result.duration) == (Outcome.ERRORED, "tear-down broke", 2.0)
    assert "call broke" in result.text


@pytest.mark.parametrize(
    ("reason", "kind", "code", "gpus"),
    [
        ("CUDA is not available.", SkipKind.HARDWARE, 74, 1),
        ("Need at least 1 CUDA device", SkipKind.HARDWARE, 75, 1),
        ("Need at least 4 CUDA devices", SkipKind.HARDWARE, 81, 4),
        ("Need at least 16 CUDA devices", SkipKind.HARDWARE, 85, 16),
        ("accelerator is not available.", SkipKind.HARDWARE, 89, 1),
        ("c10d was not compiled with the NCCL backend", SkipKind.ENVIRONMENT, 76, None),
        ("c10d was not compiled with the MPI backend", SkipKind.ENVIRONMENT, 72, None),
        ("not today: CUDA is not available.", None, None, None),
        ("we need at least 2 CUDA devices", None, None, None),
    ],
)
def test_a_skip_by_a_reason_of_torch_s_own_runner_has_its_kind(write_ranks: Write, reason, kind, code, gpus):
    case = f'<testcase classname="t" name="x"><skipped message="{reason}" type="pytest.skip"/></testcase>'
    (result,) = RankReader().read(write_ranks("rank-0.xml", [case]) / "rank-0.xml").results
    assert (result.outcome, result.message) == (Outcome.SKIPPED, reason)
    assert (result.skip_kind, result.skip_code, result.gpus_needed) == (kind, code, gpus)


def test_each_reason_in_the_installed_torch_s_table_is_known():
    table = installed_skips().values()
    assert len(table) > 15
    assert {skip.code: skip_of_text(skip.message) for skip in table} == {
        skip.code: (skip.code, skip.gpus_needed) for skip in table
    }


OURS = "allranks.outcome"
LINE = "Skipping test_x on sandcastle for the following reason: needs NCCL"


@pytest.mark.parametrize(
    ("inside", "outcome"),
    [
        (f"<system-err>before\n{LINE}\n</system-err>", Outcome.SKIPPED),
        (f"<system-out>{LINE}</system-out>", Outcome.PASSED),
        (f'<failure message="m"/><system-err>{LINE}</system-err>', Outcome.FAILED),
        (
            f'<properties><property name="{OURS}" value="passed"/></properties><system-err>{LINE}</system-err>',
            Outcome.PASSED,
        ),
    ],
)
def test_a_pass_with_torch_s_sandcastle_line_is_an_environment_skip(write_ranks: Write, inside, outcome):
    (result,) = (
        RankReader()
        .read(write_ranks("rank-0.xml", [f'<testcase classname="t" name="x">{inside}</testcase>']) / "rank-0.xml")
        .results
    )
    assert result.outcome is outcome
    if outcome is Outcome.SKIPPED:
        assert (result.message, result.skip_kind) == ("needs NCCL", SkipKind.ENVIRONMENT)


def test_colours_as_pytest_writes_them_are_removed(write_ranks: Write):
    case = (
        '<testcase classname="t" name="x[#x1B[31m]"><failure message="#x1B[1m#x1B[31mno#x1B[0m">#x1B[31mE  no#x1B[0m'
        "</failure><system-out>#x1B]0;title#x07shown #x1Bx</system-out></testcase>"
    )
    (result,) = RankReader().read(write_ranks("rank-0.xml", [case]) / "rank-0.xml").results
    assert (result.name, result.message, result.text, result.stdout) == ("x[#x1B[31m]", "no", "E  no", "shown #x1Bx")


@pytest.mark.thorough
def test_file_and_line_of_a_testcase_are_kept_and_pytest_s_lines_count_from_one(tmp_path: Path):
    (tmp_path / "test_real.py").write_text("def test_a():\n    pass\n\ndef test_b():\n    assert 0\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
    subprocess.run([*command, "--junitxml=rank-0.xml"], cwd=tmp_path, capture_output=True, check=False)
    file = RankReader().read(tmp_path / "rank-0.xml")
    assert [(key.name, key.file, key.line) for key in file.keys] == [
        ("test_a", "test_real.py", 1),
        ("test_b", "test_real.py", 4),
    ]


def test_our_properties_are_read(run_folder):
    said = {"outcome": "skipped", "message": "no GPU", "at": 1.5, "skip_kind": "hardware", "skip_code": 74}
    aborted = {"outcome": "aborted", "caused_by": 1, "consequence": 1, "phase": "call", "stdout": "hello"}
    path = run_folder.rank("c/s", 1, {"a/t.py::test_x": said, "a/t.py::T::test_y": aborted})
    first, second = RankReader().read(path).results
    assert (first.nodeid, first.classname, first.name, first.rank) == ("a/t.py::test_x", "a.t", "test_x", 1)
    assert (first.outcome, first.message, first.at) == (Outcome.SKIPPED, "no GPU", 1.5)
    assert (first.skip_kind, first.skip_code) == (SkipKind.HARDWARE, 74)
    assert (second.outcome, second.caused_by, second.consequence) == (Outcome.ABORTED, 1, True)
    assert (second.phase, second.stdout) == ("call", "hello")


def test_of_two_outcome_elements_the_worse_counts(write_ranks: Write):
    case = '<testcase name="x"><skipped/><failure message="boom"/><rerunError message="earlier"/></testcase>'
    (result,) = RankReader().read(write_ranks("rank-0.xml", [case]) / "rank-0.xml").results
    assert (result.outcome, result.message, result.nodeid) == (Outcome.FAILED, "boom", "x")


def test_nested_suites_are_read_whole(write_ranks: Write):
    root = write_ranks("rank-0.xml", ['<testsuite><testcase name="inner"/></testsuite><testcase name="outer"/>'])
    assert [result.name for result in RankReader().read(root / "rank-0.xml").results] == ["inner", "outer"]


@pytest.mark.parametrize(("time", "seconds"), [("1,234.5", 1234.5), ("0,5", 0.5), ("", None), ("1,024", None)])
def test_a_time_that_is_none_ends_the_file_with_an_error(write_ranks: Write, time: str, seconds: float | None):
    cases = ['<testcase name="a" time="1"/>', f'<testcase name="b" time="{time}"/>', '<testcase name="c"/>']
    file = RankReader().read(write_ranks("rank-0.xml", cases) / "rank-0.xml")
    if seconds is None:
        assert f'in line 1, time="{time}" is not a number of seconds' in file.problem
        assert [result.name for result in file.results] == ["a"]
    else:
        assert (file.problem, file.results[1].duration) == ("", seconds)


def test_the_testcases_before_a_cut_are_kept(run_folder):
    path = run_folder.rank("c/s", 0, {f"t.py::test_{n}": "passed" for n in range(100)})
    path.write_bytes(path.read_bytes()[:-5_000])
    file = RankReader().read(path)
    assert 10 < len(file.results) < 100
    assert (file.rank, "cut short" in file.problem) == (0, True)


BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
    '<testsuites><testsuite><testcase name="&b;"/></testsuite></testsuites>'
)
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/hostname">]><testsuite><testcase name="&a;"/></testsuite>'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "broken"),
        (b"Traceback (most recent call last):", "broken"),
        (b"<html><body>502 Bad Gateway</body></html>", "root element is <html>"),
        (BOMB.encode(), "document type"),
        (EXTERNAL.encode(), "document type"),
        (b'<?xml version="1.0" encoding="martian"?><testsuites/>', "encoding"),
        (b'<?xml version="1.0" encoding="utf-8"?><testsuites name="\xff"/>', "broken"),
        (b"<testsuites/><testsuites/>", "broken"),
    ],
)
def test_a_file_that_is_no_report_is_one_clear_problem(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "rank-0.xml"
    path.write_bytes(content)
    file = RankReader().read(path)
    assert file.results == ()
    assert file.problem.startswith("rank-0.xml cannot be read to the end: ")
    assert says in file.problem


def test_a_file_that_went_away_is_a_problem_and_no_traceback(tmp_path: Path):
    assert "No such file" in RankReader().read(tmp_path / "rank-0.xml").problem


def test_an_enormous_text_is_cut_in_the_middle(write_ranks: Write):
    case = f'<testcase name="x"><failure message="m">begin{"x" * 1_000_000}end</failure></testcase>'
    (result,) = RankReader().read(write_ranks("rank-0.xml", [case]) / "rank-0.xml").results
    assert len(result.text) < 70_000
    assert (result.text[:5], result.text[-3:]) == ("begin", "end")
    assert "characters cut here" in result.text


OUTPUT = f"<system-out>{'p' * 400}</system-out>"
SKIPS = "Skipping a on sandcastle for following reason: a"


@pytest.mark.parametrize(
    "case",
    [
        f' time="{"1" * 40_000}x">',
        f">{OUTPUT * 30_000}",
        f"><system-err>{SKIPS}{' ' * 60_000}x</system-err>",
    ],
    ids=["a long time", "many outputs", "a long reason"],
)
def test_what_is_long_or_many_takes_no_longer_than_its_size(tmp_path: Path, case: str):
    path = tmp_path / "rank-0.xml"
    path.write_text(f'<testsuite><testcase classname="t" name="a"{case}</testcase></testsuite>')
    began = time.process_time()
    RankReader().read(path)
    assert time.process_time() - began < 1
