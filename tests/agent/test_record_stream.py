"""The stream of records from a job: bounded, in order, and independent of the reader's speed."""

import os
import threading
import time
from dataclasses import replace

import pytest

from allranks.agent import linux, record_stream
from allranks.agent.record_stream import RECORD_SEPARATOR, RecordWriter
from allranks.protocol import records
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Collected, FailureCourse, Finished, Notice, Passed, Printed, RankEnded, Went

TEXT = "x" * 2000
ENDED = RankEnded(
    nodeid="t", rank=0, outcome=Outcome.FAILED, world_size=2, arrived=1.0, message="why", text=TEXT, stdout=TEXT,
    stderr=TEXT,
)  # fmt: skip
PASSED = Passed(nodeid="t", ranks=(1,), arrived=(1.0,), seconds=(0.1,), world_size=2)
MORE_THAN_A_PIPE_HOLDS = Collected(tests=("x" * (1 << 18),))


class Trial:
    """A stream whose other end is read only on demand."""

    def __init__(self):
        self._reading, self._writing = os.pipe()
        self.stream = RecordWriter(self._writing)

    def block(self):
        """Make the stream's thread wait for a reader with all records that were written so far."""
        self.stream.write(MORE_THAN_A_PIPE_HOLDS)
        assert linux.is_readable(self._reading, 20)

    def disconnect(self):
        os.close(self._reading)

    def written(self):
        """Close the stream, and return everything that was written after the blocking data."""
        return [record for record in map(records.decode, self.lines()) if record.at and not is_blocker(record)]

    def lines(self):
        found = []
        with os.fdopen(self._reading, "rb") as file:
            reader = threading.Thread(target=lambda: found.append(file.read()))
            reader.start()
            self.stream.close()
            os.close(self._writing)
            reader.join()
        *lines, rest = found[0].split(b"\n")
        assert rest == b""
        assert all(line.startswith(RECORD_SEPARATOR) for line in lines)
        return [line.removeprefix(RECORD_SEPARATOR) for line in lines]


def is_blocker(record):
    return isinstance(record, Collected)


@pytest.fixture
def trial():
    return Trial()


def without_time(found):
    return [replace(record, at=0.0) for record in found]


def test_records_are_in_order(trial):
    sent = [Went(), *(Notice(text=str(number)) for number in range(100)), ENDED, Finished(status=0)]
    for record in sent:
        trial.stream.write(record)
    assert without_time(trial.written()) == sent


def test_each_record_has_the_time_of_day(trial):
    before = time.time()
    trial.stream.write(Went(at=7.0))
    [record] = trial.written()
    assert before - 1e-6 <= record.at <= time.time()


def test_any_record_is_one_line(trial):
    trial.stream.write(Notice(text="a\nb\x1e\ud800\U0001f4a5"))
    assert without_time(trial.written()) == [Notice(text="a\nb\x1e\ud800\U0001f4a5")]


def test_records_of_several_threads_are_complete_and_in_order(trial):
    def write(rank):
        for number in range(50):
            trial.stream.write(Printed(rank=rank, line=f"{number} {TEXT}"))

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = trial.written()
    for rank in range(4):
        assert [int(record.line.split()[0]) for record in found if record.rank == rank] == list(range(50))


def test_a_reader_that_reads_nothing_does_not_block_and_memory_is_bounded(trial, monkeypatch):
    monkeypatch.setattr(record_stream, "WAITING_LIMIT", 1 << 20)
    trial.block()
    for _ in range(10_000):
        trial.stream.write(ENDED)
    found = trial.written()
    assert 0 < len(found) < 10_000
    assert sum(len(records.encode(record)) for record in found) < 1 << 20


def test_texts_are_dropped_first_and_then_display_only_records(trial, monkeypatch):
    monkeypatch.setattr(record_stream, "WAITING_LIMIT", 1 << 20)
    trial.block()
    sent = [ENDED, PASSED, Printed(rank=0, line="printed"), Notice(text="noted")]
    for _ in range(150):
        for record in sent:
            trial.stream.write(record)
    found = without_time(trial.written())
    ends = [record for record in found if isinstance(record, RankEnded)]
    bare = replace(ENDED, text="", stdout="", stderr="")
    whole = ends.index(bare)
    assert ends == [ENDED] * whole + [bare] * (150 - whole)
    assert found.count(PASSED) == 150
    shown = [record for record in found if isinstance(record, Printed | Notice)]
    assert 0 < len(shown) < 300
    assert found.index(bare) > max(index for index, record in enumerate(found) if record in shown)


def test_the_course_of_a_failure_is_dropped_before_outcomes(trial, monkeypatch):
    monkeypatch.setattr(record_stream, "WAITING_LIMIT", 1 << 20)
    trial.block()
    course = FailureCourse(nodeid="t", passed=0, stdout="x" * 20_000, stderr="x" * 20_000)
    for _ in range(150):
        trial.stream.write(course)
        trial.stream.write(PASSED)
    found = without_time(trial.written())
    assert found.count(PASSED) == 150
    assert FailureCourse(nodeid="t", passed=0) in found


def test_the_queue_accepts_records_again_after_a_read(trial, monkeypatch):
    monkeypatch.setattr(record_stream, "WAITING_LIMIT", 1 << 20)
    trial.block()
    found = []
    reader = threading.Thread(target=lambda: found.extend(trial.written()))
    for _ in range(500):
        trial.stream.write(PASSED)
    reader.start()
    reader.join()
    assert len(found) == 500


def test_close_waits_until_all_is_written(trial):
    for _ in range(1000):
        trial.stream.write(ENDED)
    trial.stream.write(Finished(status=0))
    assert isinstance(trial.written()[-1], Finished)


def test_close_without_records_writes_nothing(trial):
    assert trial.lines() == []


def test_a_lost_reader_is_no_error(trial):
    trial.block()
    trial.disconnect()
    for _ in range(3):
        trial.stream.write(Finished(status=0))
    trial.stream.close()
    trial.stream.write(Finished(status=0))
