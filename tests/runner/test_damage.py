"""A job with damaged output, at each byte: it never passes if it did not pass before, and no other job is affected."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_lists import quick
from scripted_engine import BEGUN, FINISHED, StandIn, failed

from allranks.engines.agent_output import SEPARATOR, RecordReader
from allranks.engines.base import JobEnvironment, JobExit
from allranks.protocol.records import JOURNAL, Collected, GangReady, GangStarted, Passed, TestStarted, Went, encode
from allranks.report.judge.exit_code import exit_code
from allranks.report.merging import merge
from allranks.runner.attempt_runner import AttemptRunner
from allranks.runner.dispatcher import Dispatcher
from allranks.runner.host import Host
from allranks.runner.listener import RunListener

pytestmark = pytest.mark.usefixtures("locks")

GOOD, BAD = "t.py::good", "t.py::bad"


def stream_of(*records):
    return b"".join(SEPARATOR + encode(record) + b"\n" for record in records)


def passed(nodeid, *ranks):
    return Passed(nodeid=nodeid, ranks=ranks, arrived=ranks, seconds=ranks, world_size=2)


FAILING = stream_of(
    BEGUN,
    Collected(tests=(GOOD, BAD)),
    Went(),
    GangStarted(gang=1, pids=(7, 8)),
    GangReady(),
    TestStarted(nodeid=GOOD),
    passed(GOOD, 0, 1),
    TestStarted(nodeid=BAD),
    passed(BAD, 0),
    failed(BAD, 1, "no"),
    FINISHED,
)
WHOLE_JOB = stream_of(BEGUN, Collected(tests=(GOOD,)), passed(GOOD, 0, 1), FINISHED)


@dataclass
class StreamingEngine(StandIn):
    """An engine whose jobs write given streams, in pieces of a few bytes.

    Attributes:
        streams: By the name of the suite.
    """

    streams: dict
    name: str = "streaming"

    @contextmanager
    def start(self, spec, _held=()):
        yield StreamingJob(self.streams[spec.agent.suite])


@dataclass
class StreamingJob:
    data: bytes

    def go(self):
        pass

    def request_stop(self):
        pass

    def stop(self):
        pass

    def wait(self, sink):
        stream = RecordReader()
        for offset in range(0, len(self.data), 97):
            for record in stream.feed(self.data[offset : offset + 97]):
                sink(0, record)
        return JobExit(status=0)

    def collect(self, results):
        (results / "agent.log").write_text("")


@pytest.fixture
def green(matrix, jobs, make_folder, lines):
    """Runs jobs that write these streams, in one run; returns whether each passed."""
    runs = 0

    def run(streams):
        nonlocal runs
        runs += 1
        names = [f"s{number}" for number in range(len(streams))]
        job = jobs["gloo-w2-g0-env"]
        several = [replace(job, suite=replace(job.suite, name=name)) for name in names]
        engine = StreamingEngine(dict(zip(names, streams, strict=True)))
        host = Host(engine=engine, cores=16, memory=99999, environment_of=lambda _: JobEnvironment(image="i"))
        folder = make_folder(several, run_id=f"r{runs}")
        Dispatcher(AttemptRunner(matrix, host, folder, RunListener(lines), ())).run(several)
        merged = merge(folder.path, environ={})
        return [not suite.counts.bad for suite in merged.suites]

    return run


def damaged(data, offset, change):
    """The stream with one byte flipped, removed or added, or truncated at the offset."""
    match change:
        case "flip":
            return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
        case "lose":
            return data[:offset] + data[offset + 1 :]
        case "add":
            return data[:offset] + b"1" + data[offset:]
        case "cut":
            return data[:offset]


@pytest.mark.thorough
@pytest.mark.parametrize("change", quick(1, ["flip", "cut", "lose", "add"]))
def test_one_damaged_byte_never_turns_a_failure_into_a_pass_or_affects_other_jobs(green, change):
    streams = [damaged(FAILING, offset, change) for offset in range(len(FAILING))]
    *greens, whole, failing = green([*streams, WHOLE_JOB, FAILING])
    assert (whole, failing) == (True, False)
    assert [offset for offset, is_green in enumerate(greens) if is_green] == []


def test_a_stream_without_a_list_of_tests_does_not_pass(green):
    assert green([stream_of(BEGUN, FINISHED), WHOLE_JOB]) == [False, True]


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("rank", [0, 7])
def test_changed_rank_xml_contradicts_the_record(green, tmp_path, rank, has_journal):
    assert green([WHOLE_JOB]) == [True]
    [attempt] = (tmp_path / "results" / "r1").glob("cells/*/*/attempt-1")
    written = (attempt / "rank-0.xml").read_text()
    (attempt / f"rank-{rank}.xml").write_text(written.replace("<testcase ", '<testcase file="t.py" '))
    if not has_journal:
        (attempt / JOURNAL).unlink()
    merged = merge(tmp_path / "results" / "r1", environ={})
    assert exit_code(merged, nothing_ran_allowed=False) == 3
    assert f"rank-{rank}.xml was changed after allranks wrote it" in merged.junit.read_text()


def test_a_changed_journal_contradicts_the_record(green, tmp_path):
    assert green([WHOLE_JOB]) == [True]
    [journal] = (tmp_path / "results" / "r1").glob(f"cells/*/*/attempt-1/{JOURNAL}")
    journal.write_text(journal.read_text().replace('"at":', '"at": '))
    merged = merge(tmp_path / "results" / "r1", environ={})
    assert exit_code(merged, nothing_ran_allowed=False) == 3
    assert f"{JOURNAL} was changed after allranks wrote it" in merged.junit.read_text()


edits = st.one_of(
    st.binary(max_size=6).map(lambda data: lambda text, start, _end: text[:start] + data + text[start:]),
    st.just(lambda text, start, end: text[:start] + text[end:]),
    st.just(lambda text, start, end: text[:end] + text[start:]),
    st.just(lambda text, start, end: text[:start] + text[start:end][::-1] + text[end:]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.thorough
def test_no_damage_turns_a_failure_into_a_pass(green, data):
    streams = []
    for _ in range(20):
        text = FAILING
        for _ in range(data.draw(st.integers(1, 2))):
            start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
            text = data.draw(edits)(text, start, end)
        streams.append(text)
    *greens, whole = green([*streams, WHOLE_JOB])
    assert whole
    assert not any(greens), [text for text, is_green in zip(streams, greens, strict=True) if is_green]
