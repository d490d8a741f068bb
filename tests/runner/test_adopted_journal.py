"""Continuing the journal of a job whose orchestrator was killed."""

from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.records import SCHEMA, JobStarted, Passed, encode
from allranks.runner.attempt_runner import AdoptedJournal

STARTED = encode(JobStarted(at=1.0, schema=SCHEMA, run_id="r", cell="c", suite="s", attempt=1, world_size=1)) + b"\n"
RECORDS = [Passed(nodeid=f"t{n % 3}", ranks=(0,), arrived=(2.0,), seconds=(0.5,), world_size=1, at=n) for n in range(6)]


def lines(records):
    return b"".join(encode(record) + b"\n" for record in records)


@given(heard=st.integers(0, 6), cut=st.integers(0, 30), order=st.permutations(RECORDS))
def test_all_records_are_in_the_journal_once(tmp_path_factory, heard, cut, order):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    before = STARTED + lines(RECORDS[:heard])
    torn = encode(RECORDS[heard])[:cut] if heard < len(RECORDS) else b""
    path.write_bytes(before + torn)
    with closing(AdoptedJournal(path)) as journal:
        assert journal.size == len(before)
        for record in order:
            journal.write(record)
        assert not journal.has_missing_records
    after = path.read_bytes()
    assert after.startswith(before)
    assert sorted(after.splitlines()) == sorted((STARTED + lines(RECORDS)).splitlines())


def test_a_record_that_is_not_sent_again_is_missing(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(STARTED + lines(RECORDS[:2]))
    with closing(AdoptedJournal(path)) as journal:
        journal.write(RECORDS[0])
        assert journal.has_missing_records
        journal.write(RECORDS[2])
        assert journal.has_missing_records
        journal.write(RECORDS[1])
        assert not journal.has_missing_records


def test_a_missing_journal_is_created(tmp_path):
    with closing(AdoptedJournal(tmp_path / "journal.jsonl")) as journal:
        assert journal.size == 0
        journal.write(RECORDS[0])
    assert (tmp_path / "journal.jsonl").read_bytes() == lines(RECORDS[:1])
