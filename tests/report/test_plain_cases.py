"""Reading testcases in runs gives what expat alone would give, wherever they stand and wherever chunks end."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from long_lists import quick

from allranks.report import junit_reader, rank_xml
from allranks.report.plain_cases import KnownCases, PlainCases
from allranks.report.rank_xml import RankReader
from allranks.report.results import RankFile

PLAIN = '<testcase classname="t.T" name="test_{}" time="0.{}" />'
OWN = (
    '<testcase classname="t" name="test_{0}" time="1.5"><properties>'
    '<property name="allranks.nodeid" value="t.py::test_{0}" /><property name="allranks.outcome" value="passed" />'
    '<property name="allranks.world_size" value="{1}" /><property name="allranks.at" value="1795289453.5" />'
    "</properties></testcase>"
)
TOLD = (
    '<testcase classname="t.T" name="test_{0}" time="0.{1}"><skipped type="pytest.skip" message="no &amp; {0}">a &lt; b'
    "\n</skipped></testcase>"
)
FAILED = (
    '<testcase classname="t.T" name="test_{0}" time="0.{1}"><failure message="no">text time="0.5" text</failure>'
    "<system-out>said</system-out></testcase>"
)
AGAIN = (
    '<testcase classname="t" name="test_{0}" time="1.25"><properties><property name="allranks.nodeid" value="t::{0}"/>'
    '<property name="allranks.outcome" value="crashed"/></properties><error message="{1}"/></testcase>'
)
ODD = (
    '<testcase classname="t" name="test_{0}" time="0.{1}" status="notrun" result="suppressed">'
    "<system-err>{1}</system-err></testcase>"
)
BEGIN = b'<testcase classname="t" name="x" time="'
NUMBERED = st.tuples(
    st.sampled_from([PLAIN, PLAIN, OWN, TOLD, FAILED, AGAIN, ODD]), st.integers(0, 5), st.integers(1, 4)
)
RUNS = st.lists(NUMBERED.map(lambda drawn: drawn[0].format(*drawn[1:])), min_size=1, max_size=5).map("".join)
PASSES = st.tuples(st.sampled_from([PLAIN, OWN]), st.integers(0, 5), st.integers(1, 4))
RUNS_OF_PASSES = st.lists(PASSES.map(lambda drawn: drawn[0].format(*drawn[1:])), min_size=1, max_size=5).map("".join)
AROUND = st.sampled_from(
    [
        "{}",
        '<testcase classname="t" name="outer">{}</testcase>',
        "<testcase name='quoted' time='3'/>{}\n",
        "<!-- {} -->",
        "<![CDATA[{}]]>",
        "<?told {} ?>",
        "<odd attribute='{}'/>",
        "<testsuite name='inner'>{}</testsuite>",
        '<testcase classname="t" name="ünï" time="1e3"/>{}<testcase classname="t" name="x" time="1,000.5" />',
        "</testsuite>{}<testsuite>",
        "</testsuites>{}",
    ]
)
IN_TEXT = st.sampled_from(
    [
        '<testcase classname="t" name="failed"><failure message="no">text {} text</failure></testcase>',
        '<testcase classname="t" name="told"><system-out>{}</system-out></testcase>',
        '<failure message="of the suite">{}</failure>',
    ]
)
PIECES = st.one_of(
    st.tuples(AROUND, RUNS).map(lambda drawn: drawn[0].format(drawn[1])),
    st.tuples(IN_TEXT, RUNS_OF_PASSES).map(lambda drawn: drawn[0].format(drawn[1])),
)
BODIES = st.lists(PIECES, min_size=1, max_size=5).map("".join)
HEADS = st.sampled_from(["", '<?xml version="1.0" encoding="UTF-8"?>', "\ufeff", "<?xml version='1.0'?><?also this?>"])
CUTS = st.none() | st.integers(0, 2000)
CASE = '<testcase classname="t.T" name="test_0" time="0.1" />'
SKIPPED = (
    '<testcase classname="t.T" name="test_0" time="0.1">'
    '<skipped type="pytest.skip" message="no &amp; 0">a &lt; b\n</skipped></testcase>'
)


def read(documents: Sequence[bytes], folder: Path, chunk: int) -> list[RankFile]:
    reader, files = RankReader(), []
    with patch.multiple(junit_reader, _CHUNK=chunk, _FIRST_CHUNK=chunk // 2):
        for number, document in enumerate(documents):
            path = folder / f"rank-{number}.xml"
            path.write_bytes(document)
            files.append(reader.read(path))
    return files


@example(
    heads=["", ""],
    bodies=(CASE, f'<testcase classname="t" name="outer">{CASE * 3}</testcase>{CASE}{SKIPPED}{CASE}'),
    cut=516,
    chunk=344,
)
@given(
    heads=st.lists(HEADS, min_size=2, max_size=2), bodies=st.tuples(BODIES, BODIES), cut=CUTS, chunk=st.integers(2, 900)
)
def test_every_document_reads_as_expat_alone_reads_it(tmp_path_factory, heads, bodies, cut, chunk):
    folder = tmp_path_factory.mktemp("ranks")
    bodies = (bodies[0], bodies[0] + bodies[1], bodies[0], bodies[1] + bodies[0], bodies[0])  # alike, as ranks' are
    documents = [
        f"{head}<testsuites><testsuite>{body}</testsuite></testsuites>".encode()[:cut]
        for head, body in zip(cycle(heads), bodies, strict=False)
    ]
    mixed = read(documents, folder, chunk)
    with patch.object(PlainCases, "replace", lambda _, chunk: chunk):
        assert mixed == read(documents, folder, 1 << 20)


@pytest.mark.parametrize("case", [PLAIN, OWN])
def test_runs_are_not_left_to_expat(tmp_path, case):
    document = "<testsuites><testsuite>" + "".join(case.format(number, 2) for number in range(100))
    with patch.object(PlainCases, "run", autospec=True, side_effect=PlainCases.run) as run:
        (file,) = read([document.encode()], tmp_path, 4096)
    assert 1 <= run.call_count <= 15
    assert [key.name for key in file.keys] == [f"test_{number}" for number in range(100)]
    assert set(file.world_sizes) == ({2} if case == OWN else set())


@pytest.mark.parametrize("encoding", ["utf-16", "cp037", "cp500"])
def test_documents_in_which_bytes_are_other_letters_are_left_to_expat(tmp_path, encoding):
    head = f"<?xml version='1.0' encoding='{encoding}'?>"
    document = f"{head}<testsuites><testsuite>{PLAIN.format(1, 2) * 3}</testsuite></testsuites>".encode(encoding)
    taken, alone = read([document], tmp_path, 64), read([document], tmp_path, 1 << 20)
    assert taken == alone


@pytest.mark.parametrize("case", quick(1, [TOLD, AGAIN]))
def test_what_other_ranks_have_said_before_is_not_left_to_expat(tmp_path, case):
    cases = "".join(case.format(number, 2) + PLAIN.format(number, 3) for number in range(500))
    document = f"<testsuites><testsuite>{cases}</testsuite></testsuites>".encode()
    (expected,) = read([document], tmp_path, 1 << 20)
    *_, last = read([document] * 3, tmp_path, 1 << 13)
    assert last.keys == expected.keys
    assert [replace(each, rank=0) for each in last.results] == list(expected.results)


def test_only_a_first_chunk_and_the_edges_of_others_are_left_to_expat(tmp_path, monkeypatch):
    cases = "".join(TOLD.format(number, 2) + PLAIN.format(number, 3) for number in range(500))
    document = f"<testsuites><testsuite>{cases}</testsuite></testsuites>".encode()
    left = []
    original = PlainCases.replace
    monkeypatch.setattr(PlainCases, "replace", lambda cases, chunk: left.append(original(cases, chunk)) or left[-1])
    read([document] * 3, tmp_path, 1 << 13)
    of_last = left[-len(left) // 3 :]
    assert sum(map(len, of_last)) < len(document) / 10


@pytest.mark.parametrize(
    "inside",
    [
        b"", b">", b"><failure></testcase>", b"></testcase></testsuite><testsuite>",
        b'><testcase name="y"/></testcase>', b"/><system-out>of the suite</system-out>",
        b"></testcase><properties></properties>", b"><failure/></testcase>\xff",
        b"><failure>\xc3\xbc</failure></testcase>", b"><failure>&none;</failure></testcase>",
    ],
)  # fmt: skip
def test_what_does_not_end_one_testcase_and_nothing_more_is_left_to_expat(inside):
    known = KnownCases(rank_xml._inside)
    assert [known.read(BEGIN, None, b'"' + inside) for _ in range(3)] == [None] * 3


def test_cases_are_forgotten_before_they_take_much_memory(monkeypatch):
    monkeypatch.setattr("allranks.report.plain_cases._BYTES_LIMIT", 1000)
    known = KnownCases(lambda _: None)
    begins = [b'<testcase classname="t" name="%d" time="' % number for number in range(1000)]
    found = [known.read(begin, None, b'" />') for begin in begins]
    assert [case.key.name for case in found] == [str(number) for number in range(1000)]
    assert known._bytes <= 1000
    assert len(known._known) <= 30


def test_cases_of_a_large_job_are_forgotten_at_its_end(monkeypatch):
    monkeypatch.setattr("allranks.report.plain_cases._KEPT_LIMIT", 60)
    known = KnownCases(lambda _: None)
    for number, left in ((1, 1), (2, 0)):
        for name in range(number):
            known.read(b'<testcase classname="t" name="%d" time="' % name, None, b'" />')
        known.end_job()
        assert len(known._known) == left


def test_a_list_of_googletest_is_refused_whatever_expat_reads(tmp_path):
    case = '<testcase classname="m" name="{}" time="0.1"{} />'
    cases = [case.format(number, "") for number in range(40)]
    document = "".join([case.format("first", ' status="run"'), *cases, case.format("last", ' status="run"')])
    document = f'<testsuites name="AllTests"><testsuite>{" " * 1100}{document}</testsuite></testsuites>'
    (file,) = read([document.encode()], tmp_path, 1 << 18)
    assert "has no status, so this is a list of tests" in file.problem


@pytest.mark.parametrize(
    ("now", "then"), [('at" value="1795289453.5"', 'at" value=""'), ('size" value="2"', 'size" value="0"')]
)
def test_a_value_that_allranks_never_writes_is_refused_whatever_expat_reads(tmp_path, now, then):
    cases = [OWN.format(number, 2) for number in range(100)]
    good = "<testsuites><testsuite>" + "".join(cases) + "</testsuite></testsuites>"
    cases[50] = cases[50].replace(now, then)
    bad = "<testsuites><testsuite>" + "".join(cases) + "</testsuite></testsuites>"
    *_, file = read([good.encode(), bad.encode()], tmp_path, 4096)
    assert "that allranks never writes" in file.problem
