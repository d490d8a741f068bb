"""Gangs of ranks that are no pytest: plain functions over the two pipes."""

import os
import signal
from pathlib import Path

import pytest
from allranks.harness.events import read_events
from allranks.harness.signals import held_back, raising

from allranks.harness import kernel
from allranks.harness.channel import End, Report, Run, decode_command, send_report
from allranks.harness.config import TimeLimits
from allranks.harness.gangs.arrival import Arrival, Step, describe_end
from allranks.harness.gangs.crew import Gone, LocalCrew
from allranks.harness.gangs.gang import SKIP_GRACES, Gang, HangupError, Patience
from allranks.harness.gangs.rank_process import fork_ranks
from allranks.harness.outcome import Outcome
from allranks.testing.skips import skipcodes

LIMITS = TimeLimits(process_group=20, test=20, job=20, peer_grace=0.1)
PASSED = Report(outcome=Outcome.PASSED)
FAILED = Report(outcome=Outcome.FAILED, message="broken")
SKIPPED = Report(outcome=Outcome.SKIPPED, message="not here", early_skip=True)
WAITED_IN_VAIN = Report(outcome=Outcome.FAILED, message="peer closed connection", is_symptom=True)
PATIENCE = Patience(limit=20, skip=0.1)


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
        ranks = fork_ranks(range(len(answers)), obeying(answers))
        gang = Gang([LocalCrew(ranks, tmp_path, known)], limits=LIMITS, stdin=stdin)
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
    step = start_gang([report(PASSED)], [report(PASSED)]).run(RUN, PATIENCE)
    assert outcomes(step) == {0: Outcome.PASSED, 1: Outcome.PASSED}
    assert step.is_clean
    assert step.leader is None


def test_the_first_bad_outcome_leads_and_peers_get_the_grace(start_gang):
    step = start_gang([wait], [report(FAILED)]).run(RUN, PATIENCE)
    assert step.leader.rank == 1
    assert outcomes(step) == {1: Outcome.FAILED, 0: Outcome.ABORTED}
    assert (step.arrivals[1].consequence, step.arrivals[1].caused_by) == (True, 1)


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        (leave(0), Outcome.CRASHED, "rank 0 left with exit code 0 in mid-test"),
        (leave(3), Outcome.CRASHED, "rank 0 left with exit code 3 in mid-test"),
        (leave(90), Outcome.CRASHED, "rank 0 left with exit code 90 in mid-test"),
        (leave(72), Outcome.SKIPPED, skipcodes.reason_of_exit(72)),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), Outcome.CRASHED, "rank 0 was killed by SIGKILL"),
        (close_pipe, Outcome.CRASHED, "rank 0 closed its connection to the agent and was killed"),
    ],
)
def test_a_rank_that_ends_instead_of_reporting_is_named_by_its_end(start_gang, answer, outcome, message):
    [arrival] = start_gang([answer]).run(RUN, PATIENCE).arrivals
    assert (arrival.outcome, arrival.message, arrival.observed) == (outcome, message, True)


def test_a_report_that_was_sent_before_a_death_counts(start_gang):
    def report_and_leave(reports):
        send_report(reports, FAILED)
        os._exit(1)

    [arrival] = start_gang([report_and_leave]).run(RUN, PATIENCE).arrivals
    assert (arrival.outcome, arrival.message) == (Outcome.FAILED, "broken")


def test_a_death_between_two_tests_is_an_outcome_of_the_second(start_gang):
    def report_and_leave(reports):
        send_report(reports, PASSED)
        os._exit(1)

    gang = start_gang([report_and_leave])
    assert outcomes(gang.run(RUN, PATIENCE)) == {0: Outcome.PASSED}
    assert outcomes(gang.run(RUN, PATIENCE)) == {0: Outcome.CRASHED}


def test_an_aborted_step_keeps_what_had_arrived(start_gang):
    class Late(Exception):  # noqa: N818 - what breaks the step off
        pass

    def fail_and_interrupt(reports):
        send_report(reports, FAILED)
        os.kill(os.getppid(), signal.SIGALRM)

    gang = start_gang([fail_and_interrupt], [wait])
    before = signal.signal(signal.SIGALRM, raising(Late))
    try:
        with held_back(), pytest.raises(Late):
            gang.run(RUN, PATIENCE)
    finally:
        signal.signal(signal.SIGALRM, before)
    step = gang.abort("told to")
    assert outcomes(step) == {0: Outcome.FAILED, 1: Outcome.ABORTED}
    assert {arrival.message for arrival in step.arrivals} == {"broken", "told to"}


def test_end_waits_until_all_ranks_have_left(start_gang):
    gang = start_gang([report(PASSED), None], [report(PASSED), None])
    gang.run(RUN, PATIENCE)
    assert outcomes(gang.end()) == {0: Outcome.PASSED, 1: Outcome.PASSED}


def test_close_leaves_no_child_and_no_descriptor(tmp_path):
    known, before = kernel.children(), open_descriptors()
    stdin, keep = os.pipe()
    crew = LocalCrew(fork_ranks(range(3), obeying([[wait]] * 3)), tmp_path, known)
    Gang([crew], limits=LIMITS, stdin=stdin).close()
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
    ("end", "words"),
    [
        ({"status": 0}, "left with exit code 0 in mid-test"),
        ({"status": 255}, "left with exit code 255 in mid-test"),
        ({"status": -11}, "was killed by SIGSEGV"),
        ({"status": -63}, "was killed by signal 63"),
        ({"status": -9, "for_want_of_memory": True}, "was killed for want of memory (SIGKILL, by the kernel)"),
        ({"status": None, "lost": "the agent of node 1 is gone"}, "is lost: the agent of node 1 is gone"),
    ],
)
def test_an_end_is_put_in_words(end, words):
    assert describe_end(Gone(rank=0, at=0.0, **end)) == words


def test_the_end_of_standard_input_breaks_a_step_off(tmp_path):
    known = kernel.children()
    ranks = fork_ranks([0], obeying([[wait]]))
    stdin, keep = os.pipe()  # after the fork, so that no rank holds the writing end
    gang = Gang([LocalCrew(ranks, tmp_path, known)], limits=LIMITS, stdin=stdin)
    gang.start()
    os.close(keep)
    with pytest.raises(HangupError):
        gang.run(RUN, PATIENCE)
    gang.close()
    os.close(stdin)


def test_what_came_with_the_end_of_standard_input_is_not_lost(tmp_path):
    known = kernel.children()
    [rank] = fork_ranks([0], obeying([[wait]]))
    stdin, keep = os.pipe()
    gang = Gang([LocalCrew([rank], tmp_path, known)], limits=LIMITS, stdin=stdin)
    gang.start()
    rank.signal(signal.SIGKILL)
    assert kernel.is_readable(rank.pidfd, 10)
    os.close(keep)
    with pytest.raises(HangupError):
        gang.run(RUN, PATIENCE)
    [arrival] = gang.abort("told to").arrivals
    assert arrival.message == "rank 0 was killed by SIGKILL"
    gang.close()
    os.close(stdin)


def test_a_rank_can_start_the_clock_anew(start_gang):
    def start_clock_and_wait(reports):
        send_report(reports, Report(outcome=Outcome.PASSED, is_final=False, starts_clock=True))
        signal.pause()

    gang = start_gang([start_clock_and_wait])
    [arrival] = gang.run(RUN, Patience(limit=1000, anew=0.1)).arrivals
    assert arrival.message.startswith("rank 0 timed out: no end after 0.1 s")


def test_an_observed_end_goes_into_the_ranks_own_file(start_gang, tmp_path):
    gang = start_gang([report(PASSED)], [leave(76)])
    [skipped] = [arrival for arrival in gang.run(RUN, PATIENCE).arrivals if arrival.observed]
    gang.record("t::x", skipped)
    [event] = read_events(tmp_path / "events-1.jsonl")
    assert (event["event"], event["nodeid"], event["outcome"]) == ("rank_ended", "t::x", "skipped")
    assert (event["skip_code"], event["skip_kind"]) == (76, "environment")


def consequences(step):
    return {arrival.rank: arrival.consequence for arrival in step.arrivals}


def test_a_crash_within_the_grace_leads_over_the_symptom_that_came_before_it(start_gang):
    def die_when_told(_reports):
        signal.sigwait([signal.SIGUSR1])
        os.abort()

    def complain(reports):
        send_report(reports, WAITED_IN_VAIN)
        os.kill(peer.pop(), signal.SIGUSR1)

    peer = []
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        gang = start_gang([complain], [die_when_told])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    step = gang.run(RUN, PATIENCE)
    assert step.leader.rank == 1
    assert consequences(step) == {0: True, 1: False}


def test_a_rank_that_its_peers_waited_for_in_vain_leads(start_gang):
    step = start_gang([report(WAITED_IN_VAIN)], [wait]).run(RUN, PATIENCE)
    assert (step.leader.rank, step.leader.outcome) == (1, Outcome.TIMED_OUT)
    assert step.leader.message.startswith("rank 1 timed out: its peers waited for it in vain")
    assert consequences(step) == {0: True, 1: False}


def test_where_there_are_only_symptoms_the_first_leads(start_gang):
    step = start_gang([report(WAITED_IN_VAIN)], [report(WAITED_IN_VAIN)]).run(RUN, PATIENCE)
    assert step.leader is step.arrivals[0]
    assert consequences(step) == {0: False, 1: False}


def test_the_peer_of_a_rank_that_skipped_is_aborted_after_a_while(start_gang):
    step = start_gang([report(SKIPPED)], [wait]).run(RUN, PATIENCE)
    aborted = step.arrivals[1]
    assert (aborted.outcome, aborted.caused_by) == (Outcome.ABORTED, 0)
    assert aborted.message.startswith("aborted by rank 0, which skipped")
    assert not step.is_clean


def test_the_peer_of_a_rank_that_may_skip_alone_has_all_its_time(start_gang):
    patience = Patience(limit=0.5)
    step = start_gang([report(SKIPPED)], [wait]).run(RUN, patience)
    assert (step.leader.rank, step.leader.outcome) == (1, Outcome.TIMED_OUT)


def test_the_peers_of_a_skip_have_more_time_than_those_of_a_failure():
    assert SKIP_GRACES > 1


def test_output_is_kept_of_a_rank_that_was_killed_in_the_middle_of_a_line(start_gang, tmp_path):
    def print_and_die(_reports):
        os.write(1, b"almost don")
        os.kill(os.getpid(), signal.SIGKILL)

    gang = start_gang([print_and_die])
    gang.run(RUN, PATIENCE)
    assert gang.put_output_away("t::x", [0])[0].stdout == "almost don"
    assert read_events(tmp_path / "events-0.jsonl")[-1]["stdout"] == "almost don"
    assert (tmp_path / "rank-0.log").read_text() == "--- stdout of t::x ---\nalmost don\n"
