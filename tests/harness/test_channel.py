import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.channel import End, Report, ReportReader, Run, decode_command, send_command, send_report
from allranks.harness.outcome import Outcome

REPORTS = st.builds(
    Report,
    outcome=st.sampled_from(Outcome),
    message=st.text(max_size=100),
    early_skip=st.booleans(),
    has_left_group=st.booleans(),
)


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # the test has closed it


@pytest.mark.parametrize(
    "command",
    [End(is_condemned=True), End(is_condemned=False), Run(index=3, following=4), Run(index=0, following=None)],
)
def test_a_command_arrives_as_it_was_sent(pipe, command):
    send_command(pipe[1], command)
    assert decode_command(os.read(pipe[0], 4096)) == command


def test_a_command_to_a_dead_rank_is_lost_silently(pipe):
    os.close(pipe[0])
    send_command(pipe[1], End(is_condemned=True))


def test_a_report_to_a_dead_agent_raises(pipe):
    os.close(pipe[0])
    with pytest.raises(BrokenPipeError):
        send_report(pipe[1], Report(outcome=Outcome.PASSED))


def test_nothing_to_read_is_no_end(pipe):
    reader = ReportReader(pipe[0])
    assert reader.read() == []
    assert not reader.at_end


def test_the_end_is_noticed_with_the_last_report(pipe):
    send_report(pipe[1], Report(outcome=Outcome.FAILED, message="why"))
    os.close(pipe[1])
    reader = ReportReader(pipe[0])
    assert reader.read() == [Report(outcome=Outcome.FAILED, message="why")]
    assert reader.at_end


def test_a_torn_report_is_none(pipe):
    os.write(pipe[1], b'{"outcome": "pas')
    os.close(pipe[1])
    reader = ReportReader(pipe[0])
    assert reader.read() == []
    assert reader.at_end


def test_a_long_message_is_cut_to_less_than_a_pipe_holds(pipe):
    send_report(pipe[1], Report(outcome=Outcome.FAILED, message="\U0001f4a5" * 100_000))
    [report] = ReportReader(pipe[0]).read()
    assert len(report.message) == 400


@given(st.lists(REPORTS, max_size=3), st.data())
def test_reports_survive_any_split_of_their_bytes(reports, data):
    reading, writing = os.pipe()
    for report in reports:
        send_report(writing, report)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        sent = file.read()
    cuts = sorted({0, len(sent), *data.draw(st.lists(st.integers(0, len(sent)), max_size=5))})
    reading, writing = os.pipe()
    reader = ReportReader(reading)
    arrived = []
    for start, stop in itertools.pairwise(cuts):
        os.write(writing, sent[start:stop])
        arrived += reader.read()
    os.close(reading)
    os.close(writing)
    assert arrived == reports
