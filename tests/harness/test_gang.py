"""Gangs of ranks that are no pytest: plain functions over the two pipes."""

import os
import signal
from pathlib import Path

import pytest

from allranks.harness import kernel
from allranks.harness.arrival import Arrival, Step, describe_exit, record_observed
from allranks.harness.channel import End, Report, Run, decode_command, send_report
from allranks.harness.config import TimeLimits
from allranks.harness.events import read_events
from allranks.harness.gang import Gang, HangupError
from allranks.harness.outcome import Outcome
from allranks.harness.rank_process import fork_ranks
from allranks.harness.signals import held_back
from allranks.testing.skipcodes import SkipCode

LIMITS = TimeLimits(process_group=20, test=20, job=20, peer_grace=0.1)
PASSED = Report(outcome=Outcome.PASSED)
FAILED = Report(outcome=Outcome.FAILED, message="broken")


def obeying(answers):
    """A rank that reports its start, and then answers each command with the next of its answers."""

    def be_rank(rank, commands, reports):
        try:
            send_report(reports, PASSED)
            with os.fdopen(commands, "rb") as file:
                for line, answer in zip(file, answers[rank], strict=False):
                    if isinstance(decode_command(line), End):
                        send_report(reports, PASSED)
                        os._exit(0)
                    answer(reports)
        finally:
            os._exit(99)

    return be_rank


def report(answer):
    return lambda reports: send_report(reports, answer)


def leave(status):
    return lambda _reports: os._exit(status)


def close_pipe(reports):
    os.close(reports)
    signal.pause()


def wait(_reports):
    signal.pause()


@pytest.fixture
def start_gang(tmp_path):
    gangs = []

    def start(*answers):
        known = kernel.children()
        stdin, keep = os.pipe()
        ranks = fork_ranks(len(answers), obeying(answers))
        gang = Gang(ranks, limits=LIMITS, results=tmp_path, stdin=stdin, known=known)
        gangs.append((gang, stdin, keep))
        assert gang.start().is_clean
        return gang

    yield start
    for gang, *descriptors in gangs:
        gang.close()
        for descriptor in descriptors:
            os.close(descriptor)


def outcomes(step):
    return {arrival.rank: arrival.outcome for arrival in step.arrivals}


RUN = Run(index=0, following=None)


def test_a_step_ends_with_the_report_of_the_last_rank(start_gang):
    step = start_gang([report(PASSED)], [report(PASSED)]).run(RUN)
    assert outcomes(step) == {0: Outcome.PASSED, 1: Outcome.PASSED}
    assert step.is_clean
    assert step.leader is None


def test_the_first_bad_outcome_leads_and_peers_get_the_grace(start_gang):
    step = start_gang([wait], [report(FAILED)]).run(RUN)
    assert step.leader.rank == 1
    assert outcomes(step) == {1: Outcome.FAILED, 0: Outcome.ABORTED}
    assert (step.arrivals[1].consequence, step.arrivals[1].caused_by) == (True, 1)


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        (leave(0), Outcome.CRASHED, "rank 0 left with exit code 0 in mid-test"),
        (leave(3), Outcome.CRASHED, "rank 0 left with exit code 3 in mid-test"),
        (leave(90), Outcome.CRASHED, "rank 0 left with exit code 90 in mid-test"),
        (leave(72), Outcome.SKIPPED, "the backend that this test needs is not available here"),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), Outcome.CRASHED, "rank 0 was killed by SIGKILL"),
        (close_pipe, Outcome.CRASHED, "rank 0 was killed by SIGKILL"),
    ],
)
def test_a_rank_that_ends_instead_of_reporting_is_named_by_its_end(start_gang, answer, outcome, message):
    [arrival] = start_gang([answer]).run(RUN).arrivals
    assert (arrival.outcome, arrival.message, arrival.observed) == (outcome, message, True)


def test_a_report_that_was_sent_before_a_death_counts(start_gang):
    def report_and_leave(reports):
        send_report(reports, FAILED)
        os._exit(1)

    [arrival] = start_gang([report_and_leave]).run(RUN).arrivals
    assert (arrival.outcome, arrival.message) == (Outcome.FAILED, "broken")


def test_a_death_between_two_tests_is_an_outcome_of_the_second(start_gang):
    def report_and_leave(reports):
        send_report(reports, PASSED)
        os._exit(1)

    gang = start_gang([report_and_leave])
    assert outcomes(gang.run(RUN)) == {0: Outcome.PASSED}
    assert outcomes(gang.run(RUN)) == {0: Outcome.CRASHED}


def test_an_aborted_step_keeps_what_had_arrived(start_gang):
    class Late(Exception):  # noqa: N818 - what breaks the step off
        pass

    def raise_late(*_):
        raise Late

    def fail_and_interrupt(reports):
        send_report(reports, FAILED)
        os.kill(os.getppid(), signal.SIGALRM)

    gang = start_gang([fail_and_interrupt], [wait])
    before = signal.signal(signal.SIGALRM, raise_late)
    try:
        with held_back(), pytest.raises(Late):
            gang.run(RUN)
    finally:
        signal.signal(signal.SIGALRM, before)
    step = gang.abort(Outcome.ABORTED, "told to")
    assert outcomes(step) == {0: Outcome.FAILED, 1: Outcome.ABORTED}
    assert {arrival.message for arrival in step.arrivals} == {"broken", "told to"}


def test_end_waits_until_all_ranks_have_left(start_gang):
    gang = start_gang([report(PASSED), None], [report(PASSED), None])
    gang.run(RUN)
    assert outcomes(gang.end()) == {0: Outcome.PASSED, 1: Outcome.PASSED}


def test_close_leaves_no_child_and_no_descriptor(tmp_path):
    known, before = kernel.children(), open_descriptors()
    stdin, keep = os.pipe()
    gang = Gang(fork_ranks(3, obeying([[wait]] * 3)), limits=LIMITS, results=tmp_path, stdin=stdin, known=known)
    gang.close()
    os.close(stdin)
    os.close(keep)
    assert kernel.children() == known
    assert open_descriptors() == before


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("arrivals", "is_clean"),
    [
        ([{}, {}], True),
        ([{"outcome": "skipped", "early_skip": True}] * 2, True),
        ([{"outcome": "skipped", "early_skip": True}, {}], False),
        ([{"outcome": "skipped"}] * 2, False),
        ([{"outcome": "xfailed"}] * 2, False),
        ([{"outcome": "failed"}, {}], False),
        ([{"has_left_group": True}, {}], False),
        ([{"outcome": "skipped", "early_skip": True, "has_left_group": True}] * 2, False),
    ],
)
def test_a_gang_is_kept_only_when_all_passed_or_all_skipped_early(arrivals, is_clean):
    made = [
        Arrival(rank=rank, at=0.0, **{**fields, "outcome": Outcome(fields.get("outcome", "passed"))})
        for rank, fields in enumerate(arrivals)
    ]
    assert Step(arrivals=made).is_clean is is_clean


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "left with exit code 0"), (255, "left with exit code 255"), (-11, "was killed by SIGSEGV")],
)
def test_an_exit_status_is_put_in_words(status, words):
    assert words in describe_exit(status)


def test_the_end_of_standard_input_breaks_a_step_off(tmp_path):
    known = kernel.children()
    ranks = fork_ranks(1, obeying([[wait]]))
    stdin, keep = os.pipe()  # after the fork, so that no rank holds the writing end
    gang = Gang(ranks, limits=LIMITS, results=tmp_path, stdin=stdin, known=known)
    gang.start()
    os.close(keep)
    with pytest.raises(HangupError):
        gang.run(RUN)
    gang.close()
    os.close(stdin)


def test_an_observed_end_goes_into_the_ranks_own_file(tmp_path):
    arrival = Arrival(rank=1, outcome=Outcome.SKIPPED, at=1.0, message="no NCCL", skip_code=SkipCode.NO_NCCL)
    record_observed(tmp_path, "t::x", arrival)
    [event] = read_events(tmp_path / "events-1.jsonl")
    assert (event["event"], event["nodeid"], event["outcome"]) == ("rank_ended", "t::x", "skipped")
    assert (event["skip_code"], event["skip_kind"]) == (76, "environment")
