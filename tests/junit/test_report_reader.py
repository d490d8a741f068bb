"""Reports of other writers, files that are none, and reports that do not fit into memory."""

import subprocess
import sys

import pytest

from allranks import junit
from allranks.errors import ExitCode, UsageError
from allranks.report.results import VerdictKind

OTHER = """<?xml version="1.0"?>
<testsuites name="all" tests="3">
<testsuite name="outer" tests="3" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xsi:noNamespaceSchemaLocation="a">
<properties><property name="host" value="h"/></properties>
<testcase classname="a.T" name="x" time="1,000.5" file="a.py" line="7"><failure message="no" type="E">text</failure>
<rerunFailure message="first" type="E"><stackTrace>trace</stackTrace></rerunFailure></testcase>
<testsuite name="inner"><testcase name="y"><error/></testcase></testsuite>
<testcase classname="a.T" name="z"/>
</testsuite></testsuites>"""


def test_a_report_of_another_writer_is_read(write):
    cases = {case.nodeid: case for case in junit.load(write(OTHER)).cases()}
    first = cases["a.T::x"]
    assert (first.verdict, first.message, first.cause, first.time) == (VerdictKind.FAILURE, "no", "E", 1000.5)
    assert (first.cell, first.job, first.axes, first.ranks, first.leading) == ("", "outer", {}, (), None)
    assert (first.file, first.line) == ("a.py", 7)
    assert [(each.number, each.cause, each.message, each.text) for each in first.attempts] == [
        (1, "failure", "first", "trace")
    ]
    assert (cases["y"].verdict, cases["y"].job) == (VerdictKind.ERROR, "inner")
    assert cases["a.T::z"].verdict is VerdictKind.PASSED


def test_values_that_are_none_are_none(write):
    text = (
        '<testsuite name="s"><testcase name="x" line="-1"><properties>'
        '<property name="allranks.ranks" value="0,1:passed"/><property/></properties></testcase></testsuite>'
    )
    (case,) = junit.load(write(text)).cases()
    assert (case.time, case.line, case.leading, case.skip_code) == (None, None, None, None)
    assert [rank.time for rank in case.ranks] == [None, None]
    case.time = 3
    assert case.row["time"] == 3.0


def test_it_streams_with_the_same_cases(write):
    path = write(OTHER)
    whole = [case.row for case in junit.load(path).cases()]
    assert sorted(map(str, whole)) == sorted(str(case.row) for case in junit.stream(path))


def test_pytests_own_report_is_read(tmp_path):
    (tmp_path / "test_real.py").write_text("import pytest\ndef test_a(): assert 0\ndef test_b(): pytest.skip('no')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=out.xml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    cases = {case.name: case for case in junit.load(tmp_path / "out.xml").cases()}
    assert (cases["test_a"].verdict, cases["test_b"].skip_reason) == (VerdictKind.FAILURE, "no")


ENTITIES = '<!DOCTYPE x [<!ENTITY a "{}">]><testsuites><testsuite name="&a;"/></testsuites>'


@pytest.mark.parametrize("read", [junit.load, lambda path: list(junit.stream(path))], ids=["load", "stream"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "It is empty"),
        ("not XML", "syntax error"),
        ("<html><body/></html>", "Its root element is <html>"),
        ('{"a": 1}', "not well-formed"),
        ('<testsuites><testsuite name="s"><testcase name="x">', "no element found"),
        (ENTITIES.format("x" * 1_000_000), "declares a document type"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuites/>', "declares a document type"),
        (f"<testsuites>{'<testsuite>' * 10_000}", "nested more than 64 levels deep"),
        ("<testsuites><testsuite name='&b;'/></testsuites>", "undefined entity"),
        ("<testsuites {}/>".format(" ".join(f"a{n}=''" for n in range(1001))), 'testsuites> has a0=""'),
        ("<testsuite><testcase time='soon'/></testsuite>", 'In line 1, time="soon" is not a number of seconds'),
    ],
)
def test_what_is_no_report_is_one_error(write, read, text, says):
    with pytest.raises(UsageError, match=says) as caught:
        read(write(text))
    assert "is not JUnit XML that allranks can read, or is truncated." in caught.value.what
    assert caught.value.exit_code is ExitCode.USAGE


def test_an_absent_file_and_a_folder_without_a_report_are_errors(tmp_path):
    for path in (tmp_path / "none.xml", tmp_path):
        with pytest.raises(UsageError, match="There is no report"):
            junit.load(path)


STREAM = """
import resource, sys
from allranks import junit
first = max((case.time or 0 for case in junit.stream(sys.argv[1])), default=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in junit.stream(sys.argv[2]))
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_report(write):
    text = "x" * 20_000
    case = f'<testcase classname="c" name="n{{}}" time="1"><failure message="m">{text}</failure></testcase>\n'
    root = "<testsuites><testsuite name='s'>{}</testsuite></testsuites>"
    small, large = (
        write(root.format("".join(map(case.format, range(count)))), f"{count}.xml") for count in (20, 4_000)
    )
    assert large.stat().st_size > 80_000_000
    done = subprocess.run([sys.executable, "-c", STREAM, small, large], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == 4_000
    assert grown < 16


def verdicts(read, path):
    return {case.nodeid: case.verdict.value for case in read(path)}


def test_a_report_that_contradicts_itself_has_a_problem(write):
    bad, good = (write(f'<testsuite failures="{n}"><testcase name="a"/></testsuite>', f"{n}.xml") for n in (1, 0))
    assert "a suite declares failures=1, but has failures=0" in junit.problem(bad)
    assert not junit.problem(good)


ODD = """<testsuites><testcase classname="c" name="loose"><failure/></testcase>
<testsuite name="s"><testcase name="a" status="notrun" result="suppressed"/><testcase name="b" failure="no"/>
<testcase name="c" status="run" result="completed"/></testsuite></testsuites>"""


@pytest.mark.parametrize("read", [lambda path: junit.load(path).cases(), junit.stream], ids=["load", "stream"])
def test_an_outcome_is_found_wherever_a_writer_puts_it(write, read):
    found = {case.nodeid: (case.verdict.value, case.message) for case in read(write(ODD))}
    disabled = 'status="notrun" and result="suppressed"'
    assert found == {
        "c::loose": ("failure", ""), "a": ("skipped", disabled), "b": ("failure", "no"), "c": ("passed", "")
    }  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    ["<TestCase/>", "<group><testcase/></group>", "<testcase><testsuite/></testcase>", "<testsuites/>", "<error/>"],
)
def test_an_element_that_junitparser_would_lose_is_an_error(write, odd):
    with pytest.raises(UsageError, match=r"In line 1, <\w+> is in <\w+>"):
        junit.load(write(f"<testsuites><testsuite>{odd}</testsuite></testsuites>"))
