"""The XML of ranks, made of a journal: pytest's dialect, and what reading it back gives."""

import re
from pathlib import Path

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import JOURNAL, SCHEMA, JobStarted, Passed, PhaseEnd, RankEnded, TestStarted, encode
from allranks.report.journal import read_journal
from allranks.report.rank_document import write_rank_files
from allranks.report.rank_xml import RankReader

RECORDED = Path(__file__).with_name("recorded")
A, B = "suite/test_a.py::test_a", "suite/test_b.py::TestB::test_b[x-1]"


def started(world_size, cell="gloo-w2-g0-env", suite="all"):
    return JobStarted(schema=SCHEMA, run_id="r", cell=cell, suite=suite, attempt=1, world_size=world_size)


def journal_of(folder, *records):
    path = folder / JOURNAL
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def written(folder, *records):
    """What each rank's XML says, by rank."""
    write_rank_files(folder, journal_of(folder, *records))
    return {int(path.stem.removeprefix("rank-")): RankReader().read(path) for path in folder.glob("rank-*.xml")}


def passed(nodeid, *ranks, world_size=2, seconds=0.25):
    count = len(ranks)
    return Passed(nodeid=nodeid, ranks=ranks, arrived=(9.0,) * count, seconds=(seconds,) * count, world_size=world_size)


def ended(nodeid, rank, outcome=Outcome.FAILED, *, world_size=2, **more):
    return RankEnded(nodeid=nodeid, rank=rank, outcome=outcome, world_size=world_size, arrived=9.5, **more)


def test_the_xml_is_what_was_recorded_with_the_journal(tmp_path):
    [journal] = RECORDED.rglob(JOURNAL)
    write_rank_files(tmp_path, journal)
    recorded = sorted(journal.parent.glob("rank-*.xml"))
    assert len(recorded) == 2
    hostname = re.compile(r'hostname="[^"]*"')
    for path in recorded:
        now = (tmp_path / path.name).read_text(encoding="utf-8")
        assert hostname.sub("", now) == hostname.sub("", path.read_text(encoding="utf-8"))


def test_every_rank_of_the_job_has_a_file_and_every_other_that_has_results(tmp_path):
    files = written(tmp_path, started(2), passed(A, 0, 2, 5, world_size=6))
    assert {rank: [key.nodeid for key in file.keys] for rank, file in files.items()} == {0: [A], 1: [], 2: [A], 5: [A]}


def test_a_test_that_was_started_and_has_no_end_is_missing_on_every_rank(tmp_path):
    files = written(tmp_path, started(2), TestStarted(nodeid=A), passed(A, 0, 1), TestStarted(nodeid=B))
    for file in files.values():
        assert [result.outcome for result in file.results] == [Outcome.PASSED, Outcome.MISSING]
        assert "no result arrived" in file.results[1].message


def test_a_rank_of_which_nothing_came_back_is_missing_beside_those_that_ended(tmp_path):
    files = written(tmp_path, started(2), TestStarted(nodeid=A), passed(A, 1))
    assert [files[rank].results[0].outcome for rank in (0, 1)] == [Outcome.MISSING, Outcome.PASSED]


GOOD, SKIP, BAD, WORSE = (
    passed(A, 0, world_size=1),
    ended(A, 0, Outcome.SKIPPED, world_size=1, message="skip"),
    ended(A, 0, Outcome.FAILED, world_size=1, message="bad"),
    ended(A, 0, Outcome.CRASHED, world_size=1, message="worse"),
)
LOST = ended(A, 0, Outcome.CRASHED, world_size=1, message="lost", is_lost=True)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([BAD, WORSE], "bad"),
        ([BAD, GOOD], "bad"),
        ([GOOD, BAD], "bad"),
        ([SKIP, BAD, GOOD], "bad"),
        ([GOOD, SKIP], "skip"),
        ([SKIP, GOOD], "skip"),
        ([LOST], "lost"),
        ([LOST, GOOD], ""),
        ([GOOD, LOST], ""),
        ([LOST, WORSE], "worse"),
        ([SKIP, LOST], "skip"),
        ([ended(A, 0, Outcome.PASSED, world_size=1)], ""),
    ],
)
def test_the_first_bad_end_of_a_rank_counts_and_nothing_betters_it(tmp_path, records, message):
    [result] = written(tmp_path, started(1), *records)[0].results
    assert result.message == message


def test_a_file_is_one_that_other_programs_read(tmp_path):
    said = ended(A, 1, message='no & "no"\n<no>', text="line\r\n\x1b[31mred", stdout="out", stderr="err", phase="call")
    written(tmp_path, started(2), said, passed(B, 0, 1))
    [suite] = junitparser.JUnitXml.fromfile(str(tmp_path / "rank-1.xml"))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (2, 1, 0, 0)
    [failure, good] = suite
    assert (failure.classname, failure.name, good.classname, good.name) == (
        "suite.test_a", "test_a", "suite.test_b.TestB", "test_b[x-1]",
    )  # fmt: skip
    assert (failure.result[0].message, failure.system_out, failure.system_err) == ('no & "no"\n<no>', "out", "err")
    assert failure.result[0].text == "line\r\nred"


texts = st.text(max_size=12)
names = st.sampled_from([A, B, "odd\x01 id", "a/b.py::c[ü&<\"']", "module.py"])
ranks = st.integers(0, 3)
passes = st.builds(
    lambda nodeid, ranks, at, seconds: Passed(
        nodeid=nodeid, ranks=tuple(ranks), arrived=(at,) * len(ranks), seconds=(seconds,) * len(ranks), world_size=4
    ),
    names,
    st.sets(ranks, min_size=1),
    st.integers(0, 10**9).map(lambda at: at / 64),
    st.integers(0, 800).map(lambda seconds: seconds / 8),
)
ends = st.builds(
    RankEnded,
    nodeid=names,
    rank=ranks,
    outcome=st.sampled_from(Outcome),
    world_size=st.just(4),
    arrived=st.integers(0, 10**9).map(lambda at: at / 64),
    phases=st.lists(
        st.builds(
            PhaseEnd,
            when=st.just("call"),
            outcome=st.sampled_from(Outcome),
            seconds=st.integers(-8, 80).map(lambda seconds: seconds / 8),
        ),
        max_size=2,
    ).map(tuple),
    phase=st.sampled_from(["", "setup", "call", "collect"]),
    message=texts,
    text=texts,
    stdout=texts,
    stderr=texts,
    caused_by=st.none() | ranks,
    consequence=st.booleans(),
    is_lost=st.booleans(),
    skip_kind=st.none() | st.sampled_from(SkipKind),
    skip_code=st.none() | st.integers(1, 99),
    gpus_needed=st.none() | st.integers(1, 100),
)
starts = st.builds(TestStarted, nodeid=names)


@given(st.lists(st.one_of(passes, ends, starts), max_size=12))
def test_the_xml_says_what_the_journal_says(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("attempt")
    files = written(folder, started(4), *records)
    direct = {file.rank: file for file in read_journal(folder / JOURNAL)}
    assert files.keys() == direct.keys()
    for rank, file in files.items():
        assert (file.properties, file.keys, file.problem) == (direct[rank].properties, direct[rank].keys, "")
        assert file.results == direct[rank].results
        assert list(file.seconds) == list(direct[rank].seconds)
