"""Writing the journal, and reading that of a killed run."""

import os
from contextlib import closing

import pytest
from scripted_engine import COLLECTED, PASSED, failed

from allranks.ownership import own_run
from allranks.protocol.records import JOURNAL, SCHEMA, JobStarted, decode
from allranks.report.journal import JournalWriter
from allranks.report.rank_xml import RankReader
from allranks.runner.ledger import complete_dead_runs

pytestmark = pytest.mark.usefixtures("locks")

CELL = "gloo-w2-g0-env"
STARTED = JobStarted(schema=SCHEMA, run_id="run-1", cell=CELL, suite="tiny", attempt=1, world_size=2)
WHOLE_JOB = (STARTED, COLLECTED, PASSED, failed("t", 1, "assert 1 == 2", world_size=2))


def write(path, *records):
    with closing(JournalWriter(path)) as journal:
        for record in records:
            journal.write(record)


def read(path):
    return tuple(decode(line) for line in path.read_bytes().splitlines())


@pytest.fixture
def attempt(tmp_path):
    folder = tmp_path / "run-1" / "cells" / CELL / "tiny" / "attempt-1"
    folder.mkdir(parents=True)
    write(folder / JOURNAL, *WHOLE_JOB)
    return folder


def outcomes(path):
    return [(result.nodeid, result.outcome.value, result.message) for result in RankReader().read(path).results]


def test_each_record_is_written_immediately(tmp_path):
    with closing(JournalWriter(tmp_path / JOURNAL)) as journal:
        journal.write(STARTED)
        journal.write(COLLECTED)
        assert read(tmp_path / JOURNAL) == (STARTED, COLLECTED)
        assert journal.size == (tmp_path / JOURNAL).stat().st_size


def test_a_journal_is_append_only(tmp_path):
    write(tmp_path / JOURNAL, STARTED)
    write(tmp_path / JOURNAL, COLLECTED)
    assert read(tmp_path / JOURNAL) == (STARTED, COLLECTED)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    with closing(JournalWriter(tmp_path / "gone" / JOURNAL)) as journal, pytest.raises(OSError, match="gone"):
        journal.write(STARTED)


def test_journals_of_dead_runs_become_rank_xml(attempt, tmp_path):
    complete_dead_runs(tmp_path)
    assert outcomes(attempt / "rank-0.xml") == [("t", "passed", "")]
    assert outcomes(attempt / "rank-1.xml") == [("t", "failed", "assert 1 == 2")]
    assert RankReader().read(attempt / "rank-0.xml").properties["allranks.world_size"] == "2"


def test_a_living_run_is_not_changed(attempt, tmp_path):
    with own_run("run-1"):
        complete_dead_runs(tmp_path)
    assert [path.name for path in attempt.iterdir()] == [JOURNAL]


@pytest.mark.parametrize("name", ["job.json", "rank-7.xml"])
def test_an_attempt_with_a_record_or_xml_is_not_changed(attempt, tmp_path, name):
    (attempt / name).write_text("{}")
    complete_dead_runs(tmp_path)
    assert not (attempt / "rank-0.xml").exists()


def test_a_truncated_journal_is_read_up_to_the_last_complete_record(attempt, tmp_path):
    text = (attempt / JOURNAL).read_bytes()
    (attempt / JOURNAL).write_bytes(text[:-9])
    complete_dead_runs(tmp_path)
    assert outcomes(attempt / "rank-0.xml") == [("t", "passed", "")]
    assert outcomes(attempt / "rank-1.xml") == []


def test_symlinks_are_not_followed(attempt, tmp_path):
    outside = tmp_path / "outside"
    gathered = tmp_path / "gathered" / "run-1" / "cells" / CELL / "tiny"
    gathered.mkdir(parents=True)
    attempt.rename(outside)
    (gathered / "attempt-1").symlink_to(outside)
    complete_dead_runs(tmp_path / "gathered")
    assert [path.name for path in outside.iterdir()] == [JOURNAL]


def test_a_journal_that_is_not_a_regular_file_is_ignored(attempt, tmp_path):
    (attempt / JOURNAL).unlink()
    os.mkfifo(attempt / JOURNAL)
    complete_dead_runs(tmp_path)
    assert [path.name for path in attempt.iterdir()] == [JOURNAL]
