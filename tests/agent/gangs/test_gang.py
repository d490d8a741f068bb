"""Gangs of ranks that are no pytest: plain functions at their end of the connection."""

import itertools
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.agent import linux
from allranks.agent.channel import Debugging, End, Leaving, PhasesEnded, RankEnd, RankExit, Released, RunTest, StepEnded
from allranks.agent.diagnose.stacks import STACKS_SIGNAL
from allranks.agent.diagnose.step_outcome import Step, StepOutcome, describe_end, ends_of
from allranks.agent.gangs.gang import SKIP_GRACES, Deadlines, Gang
from allranks.agent.gangs.local_ranks import CLOSED_TIMEOUT, LocalRanks, Stop, fork_ranks
from allranks.agent.job_end import JobEnd, JobLimitError, StopRequestedError
from allranks.protocol import skip_codes
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.outcomes import Outcome, Phase, SkipKind

LIMITS = TimeLimits(process_group=20, test=20, job=20, peer_grace=0.1)
TEST = "t::x"
RUN = RunTest(index=0, nodeid=TEST, following=None)
STARTED = StepEnded()
PASSED = StepEnded(nodeid=TEST)


def phases(when, outcome, message=""):
    return (Phase(when=when, outcome=Outcome(outcome), duration=0.5, message=message),)


FAILED = StepEnded(nodeid=TEST, phases=phases("call", "failed", "broken"))
SKIPPED = StepEnded(nodeid=TEST, phases=phases("setup", "skipped", "not here"), early_skip=True)
WAITED_IN_VAIN = PhasesEnded(nodeid=TEST, phases=phases("call", "failed", "peer closed connection"), is_symptom=True)


def of_test(seconds):
    return TimeLimit(value=seconds, setting="limits.test")


def within(seconds, **more):
    return Deadlines(limit=of_test(seconds), **more)


DEADLINES = within(20, skip=0.1)


def phase(when, outcome="passed", message=""):
    return PhasesEnded(nodeid=TEST, phases=phases(when, outcome, message))


def obeying(answers):
    """A rank that reports its start, and then answers each command with the next of its answers."""

    def be_rank(rank, connection, _board):
        try:
            end = RankEnd(connection)
            end.send(STARTED)
            for answer in answers[rank]:
                if isinstance(end.command(), End):
                    end.send(STARTED)
                    os._exit(0)
                answer(end)
            end.command()
        finally:
            os._exit(99)

    return be_rank


def report(*answers):
    def tell(end):
        for answer in answers:
            end.send(answer)

    return tell


def leave(status):
    return lambda _end: os._exit(status)


def announce_and_leave(status, announced=None):
    def go(end):
        end.send(Leaving(nodeid=TEST, status=status if announced is None else announced))
        os._exit(status)

    return go


def close_connection(end):
    end._commands.close()
    end._socket.close()
    signal.pause()


def garble(end):
    end._socket.sendall(b'\n\x1e{"event": ["x"]}\n')
    signal.pause()


def wait(_end):
    signal.pause()


def left_by(known):
    return lambda _pids: linux.children() - known


@pytest.fixture
def job_end():
    end = JobEnd()
    yield end
    end.close()


@pytest.fixture
def start_gang(tmp_path, job_end):
    gangs = []

    def start(*answers):
        known = linux.children()
        ranks = fork_ranks(range(len(answers)), obeying(answers))
        gang = Gang([LocalRanks(ranks, tmp_path, left_by(known))], limits=LIMITS, end=job_end)
        gangs.append(gang)
        assert gang.start().is_clean
        return gang

    yield start
    for gang in gangs:
        gang.close()


def outcomes(step):
    return {each.rank: each.outcome for each in step.outcomes}


def test_a_step_ends_with_the_report_of_the_last_rank(start_gang):
    step = start_gang([report(PASSED)], [report(PASSED)]).run(RUN, DEADLINES)
    assert outcomes(step) == {0: Outcome.PASSED, 1: Outcome.PASSED}
    assert step.is_clean
    assert step.leader is None


def test_the_first_bad_outcome_leads_and_peers_get_the_grace(start_gang):
    step = start_gang([wait], [report(FAILED)]).run(RUN, DEADLINES)
    assert step.leader.rank == 1
    assert outcomes(step) == {1: Outcome.FAILED, 0: Outcome.ABORTED}
    assert (step.outcomes[1].consequence, step.outcomes[1].caused_by) == (True, 1)


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        (leave(0), Outcome.CRASHED, "rank 0 left with exit code 0 in mid-test"),
        (leave(3), Outcome.CRASHED, "rank 0 left with exit code 3 in mid-test"),
        (announce_and_leave(90), Outcome.CRASHED, "rank 0 left with exit code 90 in mid-test"),
        (announce_and_leave(72), Outcome.SKIPPED, skip_codes.reason_of_exit(72)),
        (leave(72), Outcome.CRASHED, "rank 0 left with exit code 72 in mid-test"),
        (announce_and_leave(77, announced=72), Outcome.CRASHED, "rank 0 left with exit code 77 in mid-test"),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), Outcome.CRASHED, "rank 0 was killed by SIGKILL"),
        (close_connection, Outcome.CRASHED, "rank 0 closed its connection to the supervisor and was killed"),
        (garble, Outcome.CRASHED, "rank 0 wrote into its connection to the supervisor and was killed"),
    ],
)
def test_a_rank_that_ends_instead_of_reporting_is_named_by_its_end(start_gang, answer, outcome, message):
    [ended] = start_gang([answer]).run(RUN, DEADLINES).outcomes
    assert (ended.outcome, ended.message, ended.observed) == (outcome, message, True)


LONG = "t::" + "x" * 1_000_000


def long_run():
    return RunTest(index=0, nodeid=LONG, following=None)


def pass_long(end):
    end.send(StepEnded(nodeid=LONG))


def test_a_test_with_a_long_name_runs_on_every_rank(start_gang):
    gang = start_gang(*[[pass_long] * 4] * 2)
    for _ in range(3):
        assert outcomes(gang.run(long_run(), DEADLINES)) == {0: Outcome.PASSED, 1: Outcome.PASSED}
    assert gang.end().is_clean


def stop_first(answer):
    """Stop this rank before it reads the next command."""

    def act(end):
        answer(end)
        os.kill(os.getpid(), signal.SIGSTOP)

    return act


def test_a_stopped_rank_that_takes_no_command_keeps_no_other_rank_waiting(start_gang):
    gang = start_gang([stop_first(report(PASSED)), pass_long], [report(PASSED), report(StepEnded(nodeid=LONG))])
    assert gang.run(RUN, DEADLINES).is_clean
    step = gang.run(long_run(), within(1))
    assert outcomes(step) == {0: Outcome.TIMED_OUT, 1: Outcome.PASSED}
    assert step.leader.message.endswith("it is stopped (SIGSTOP)")


def test_a_stopped_rank_gets_the_rest_of_its_command_when_it_goes_on(start_gang):
    gang = start_gang([stop_first(report(PASSED)), pass_long])
    assert gang.run(RUN, DEADLINES).is_clean
    [pid] = gang._ranks[0].pids
    wait_for_state(pid, "T")
    selector = gang._selector
    select, gone_on = selector.select, []

    def resume_and_select(timeout):
        if not gone_on:
            os.kill(pid, signal.SIGCONT)
            gone_on.append(pid)
        return select(timeout)

    selector.select = resume_and_select
    assert outcomes(gang.run(long_run(), DEADLINES)) == {0: Outcome.PASSED}


def wait_for_state(pid, state):
    while linux.state_of(pid) != state:
        time.sleep(0.001)


@pytest.mark.parametrize("die", [leave(3), lambda _: os.kill(os.getpid(), signal.SIGKILL), close_connection])
def test_a_rank_that_dies_before_it_has_taken_a_long_command_is_named_by_its_end(start_gang, die):
    def pass_and_die(end):
        end.send(PASSED)
        end._socket.recv(1, socket.MSG_PEEK)  # the next command has begun to arrive
        die(end)

    gang = start_gang([pass_and_die], [report(PASSED), pass_long])
    assert gang.run(RUN, DEADLINES).is_clean
    step = gang.run(long_run(), DEADLINES)
    assert outcomes(step) == {0: Outcome.CRASHED, 1: Outcome.PASSED}


def test_a_rank_that_shuts_its_connection_down_is_named_by_that(start_gang):
    def shut_down(end):
        end._socket.shutdown(socket.SHUT_RD)
        end.send(PASSED)
        signal.pause()

    gang = start_gang([shut_down])
    assert gang.run(RUN, DEADLINES).is_clean
    [ended] = gang.run(long_run(), DEADLINES).outcomes
    assert ended.message == "rank 0 closed its connection to the supervisor and was killed"


def test_a_rank_whose_own_end_takes_long_has_not_closed_its_connection(start_gang, monkeypatch):
    is_readable = linux.is_readable
    monkeypatch.setattr(
        linux, "is_readable", lambda end, seconds: is_readable(end, seconds) and seconds != CLOSED_TIMEOUT
    )
    [ended] = start_gang([leave(3)]).run(RUN, DEADLINES).outcomes
    assert ended.message == "rank 0 left with exit code 3 in mid-test"


def test_a_report_that_was_sent_before_a_death_counts(start_gang):
    def report_and_leave(end):
        end.send(FAILED)
        os._exit(1)

    [outcome] = start_gang([report_and_leave]).run(RUN, DEADLINES).outcomes
    assert (outcome.outcome, outcome.message) == (Outcome.FAILED, "broken")


def test_a_death_between_two_tests_is_an_outcome_of_the_second(start_gang):
    def report_and_leave(end):
        end.send(PASSED)
        os._exit(1)

    gang = start_gang([report_and_leave])
    assert outcomes(gang.run(RUN, DEADLINES)) == {0: Outcome.PASSED}
    assert outcomes(gang.run(RUN, DEADLINES)) == {0: Outcome.CRASHED}


def test_a_death_after_its_own_part_counts_while_a_peer_is_in_the_test(start_gang):
    def report_and_leave(end):
        end.send(PASSED)
        os._exit(1)

    step = start_gang([wait], [report_and_leave]).run(RUN, DEADLINES)
    assert (step.leader.rank, outcomes(step)) == (1, {0: Outcome.ABORTED, 1: Outcome.CRASHED})
    assert step.leader.message == "rank 1 left with exit code 1 in mid-test, when it had ended its own part of the test"


def test_a_report_of_another_test_is_none_of_this_one(start_gang):
    stale = StepEnded(nodeid="t::before")
    step = start_gang([report(stale, FAILED, PASSED)]).run(RUN, DEADLINES)
    assert outcomes(step) == {0: Outcome.FAILED}


def test_the_first_bad_phase_decides_whatever_a_rank_says_after_it(start_gang):
    step = start_gang([report(phase("setup"), phase("call", "failed", "broken"), PASSED)]).run(RUN, DEADLINES)
    [outcome] = step.outcomes
    assert (outcome.outcome, outcome.message) == (Outcome.FAILED, "broken")


def test_the_phases_that_a_rank_has_reported_are_kept(start_gang):
    step = start_gang([report(phase("setup"), phase("call"), phase("teardown"), PASSED)]).run(RUN, DEADLINES)
    assert [each.when for each in step.phases[0]] == ["setup", "call", "teardown"]
    [passed] = ends_of(step, TEST, 1, {})
    assert passed.seconds == (1.5,)


def test_an_exit_with_a_skip_code_is_a_skip_before_the_call_has_ended_alone(start_gang):
    def pass_and_leave(end):
        report(phase("setup"), phase("call"))(end)
        announce_and_leave(77)(end)

    [outcome] = start_gang([pass_and_leave]).run(RUN, DEADLINES).outcomes
    assert (outcome.outcome, outcome.skip_code) == (Outcome.CRASHED, None)


def fork_and(deed):
    """Have a child of the rank do something at the rank's end of the connection, and wait for the end of it."""

    def act(end):
        pid = os.fork()
        if pid == 0:
            deed(end)
            os._exit(0)
        os.waitpid(pid, 0)

    return act


def test_what_a_forked_child_says_in_its_parents_place_is_left_out_and_noted(start_gang):
    def fork_and_fail(end):
        fork_and(report(PASSED))(end)
        end.send(FAILED)

    step = start_gang([fork_and_fail]).run(RUN, DEADLINES)
    assert outcomes(step) == {0: Outcome.FAILED}
    assert step.strangers == {0}


def test_a_forked_child_is_noted_in_its_own_test_alone(start_gang):
    def fork_and_pass(end):
        fork_and(report(FAILED))(end)
        end.send(PASSED)

    gang = start_gang([fork_and_pass, report(PASSED)])
    assert gang.run(RUN, DEADLINES).strangers == {0}
    assert gang.run(RUN, DEADLINES).strangers == set()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
@pytest.mark.parametrize("moment", range(6))
def test_the_day_may_be_set_at_any_moment_of_a_test(monkeypatch, start_gang, jump, moment):
    real, looks = time.time, itertools.count()
    gang = start_gang([wait], [report(FAILED)], [wait])
    select = gang._selector.select

    def set_the_day_and_select(timeout):
        if next(looks) == moment:
            monkeypatch.setattr(time, "time", lambda: real() + jump)
        return select(timeout)

    gang._selector.select = set_the_day_and_select
    step = gang.run(RUN, within(20))
    assert [(each.rank, each.caused_by) for each in step.outcomes] == [(1, None), (0, 1), (2, 1)]
    ends = ends_of(step, RUN.nodeid, 3, {})
    assert [each.rank for each in sorted(ends, key=lambda each: each.arrived)] == [1, 0, 2]
    assert all(each.observed < 20 for each in ends)


def test_an_aborted_step_keeps_what_had_arrived(start_gang, job_end):
    def fail_and_interrupt(end):
        end.send(FAILED)
        os.kill(os.getppid(), signal.SIGUSR1)
        signal.pause()

    before = signal.signal(signal.SIGUSR1, lambda *_: job_end.request_stop())
    try:
        gang = start_gang([fail_and_interrupt], [wait])
        with pytest.raises(StopRequestedError):
            gang.run(RUN, DEADLINES)
    finally:
        signal.signal(signal.SIGUSR1, before)
    step = gang.abort("told to")
    assert outcomes(step) == {0: Outcome.FAILED, 1: Outcome.ABORTED}
    assert {each.message for each in step.outcomes} == {"broken", "told to"}


def test_end_waits_until_all_ranks_have_left(start_gang):
    gang = start_gang([report(PASSED), None], [report(PASSED), None])
    gang.run(RUN, DEADLINES)
    assert outcomes(gang.end()) == {0: Outcome.PASSED, 1: Outcome.PASSED}


def test_close_leaves_no_child_and_no_descriptor(tmp_path, job_end):
    known, before = linux.children(), open_descriptors()
    local_ranks = LocalRanks(fork_ranks(range(3), obeying([[wait]] * 3)), tmp_path, left_by(known))
    Gang([local_ranks], limits=LIMITS, end=job_end).close()
    assert linux.children() == known
    assert open_descriptors() == before


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_rank_that_was_found_starts_nothing_more_before_it_is_ended(tmp_path):
    def lead_and_wait(_end):
        signal.signal(STACKS_SIGNAL, lambda *_: None)
        os.setsid()
        while True:
            signal.pause()

    local_ranks = LocalRanks(fork_ranks([0], obeying([[lead_and_wait]])), tmp_path, left_by(linux.children()))
    [pid] = local_ranks.pids
    try:
        local_ranks.send(RUN)
        assert is_soon(lambda: linux.session_of(pid) == pid)
        local_ranks.stop([0], Stop.FREEZE)
        assert not local_ranks.examine([0])().hangs[0].held
        assert is_soon(lambda: linux.state_of(pid) == "T")
        local_ranks.stop([0], Stop.TERM)
        assert is_soon(lambda: linux.state_of(pid) == "Z")
    finally:
        local_ranks.stop([0], Stop.KILL)
        linux.reap(pid, 20)
        local_ranks.close()()


def is_soon(condition):
    deadline = time.monotonic() + 20
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def test_what_a_stopped_rank_had_started_ends_with_it_and_is_no_news(tmp_path, job_end):
    def start_another_and_wait(end):
        os.setsid()
        if os.fork():
            end.send(FAILED)
        signal.pause()

    known = linux.children()
    gang = Gang(
        [LocalRanks(fork_ranks([0], obeying([[start_another_and_wait]])), tmp_path, left_by(known))],
        limits=LIMITS,
        end=job_end,
    )
    gang.start()
    gang.run(RUN, DEADLINES)
    assert gang.close() == []
    assert linux.children() == known


@pytest.mark.parametrize("closes", [True, False], ids=["after its connection", "after all"])
def test_a_rank_that_is_slow_to_end_after_its_test_hides_nothing_that_it_leaves_behind(tmp_path, job_end, closes):
    """On a busy host it takes seconds, and it is killed; as when a fork bomb was left."""

    def leave_another_and_linger(end):
        os.setsid()
        if os.fork() == 0:
            end._commands.close()
            end._socket.close()
            time.sleep(60)
        end.send(PASSED)
        end.command()
        end.send(STARTED)
        if closes:
            end._commands.close()
            end._socket.close()
        time.sleep(60)

    known = linux.children()
    ranks = LocalRanks(fork_ranks([0], obeying([[leave_another_and_linger]])), tmp_path, left_by(known))
    gang = Gang([ranks], limits=LIMITS, end=job_end)
    with linux.adopting_orphans():
        gang.start()
        assert gang.run(RUN, DEADLINES).is_clean
        assert gang.end().leader is None
        assert [left.rank for left in gang.close()] == [0]
    assert linux.children() == known


@pytest.mark.parametrize(
    ("fields_by_rank", "is_clean"),
    [
        ([{}, {}], True),
        ([{"outcome": "skipped", "early_skip": True}] * 2, True),
        ([{"outcome": "skipped", "early_skip": True}, {}], False),
        ([{"outcome": "skipped"}] * 2, False),
        ([{"outcome": "xfailed"}] * 2, False),
        ([{"outcome": "failed"}, {}], False),
        ([{"left": ("builtins",)}, {}], False),
        ([{"has_exited": True}, {}], False),
        ([{"outcome": "skipped", "early_skip": True, "left": ("builtins",)}] * 2, False),
    ],
)
def test_a_gang_is_kept_only_when_all_passed_or_all_skipped_early(fields_by_rank, is_clean):
    made = [
        StepOutcome(rank=rank, at=0.0, **{**fields, "outcome": Outcome(fields.get("outcome", "passed"))})
        for rank, fields in enumerate(fields_by_rank)
    ]
    assert Step(outcomes=made).is_clean is is_clean


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"status": 0}, "left with exit code 0 in mid-test"),
        ({"status": 255}, "left with exit code 255 in mid-test"),
        ({"status": -11}, "was killed by SIGSEGV"),
        ({"status": -63}, "was killed by signal 63"),
        ({"status": -9, "by_memory_killer": True}, "was killed by the kernel's out-of-memory killer"),
        ({"status": None, "lost": "the agent of node 1 is gone"}, "is lost: the agent of node 1 is gone"),
    ],
)
def test_an_end_is_put_in_words(end, words):
    assert describe_end(RankExit(rank=0, at=0.0, **end)) == words


def test_the_end_of_the_job_breaks_a_step_off(start_gang, job_end):
    gang = start_gang([wait])
    job_end.request_stop()
    with pytest.raises(StopRequestedError):
        gang.run(RUN, DEADLINES)


def test_the_limit_of_the_job_breaks_a_step_off_and_says_who_hung(start_gang, job_end, monkeypatch):
    gang = start_gang([wait])
    monkeypatch.setattr(job_end, "_deadline", 0.0)
    with pytest.raises(JobLimitError):
        gang.run(RUN, DEADLINES)
    [outcome] = gang.give_up("the time is up").outcomes
    assert outcome.outcome is Outcome.TIMED_OUT
    assert outcome.message.startswith("the time is up, in the set-up of this test")


def test_what_came_with_the_end_of_the_job_is_not_lost(tmp_path, job_end):
    [rank] = fork_ranks([0], obeying([[wait]]))
    gang = Gang([LocalRanks([rank], tmp_path, lambda _pids: ())], limits=LIMITS, end=job_end)
    gang.start()
    rank.signal(signal.SIGKILL)
    assert linux.is_readable(rank.pidfd, 10)
    job_end.request_stop()
    with pytest.raises(StopRequestedError):
        gang.run(RUN, DEADLINES)
    [outcome] = gang.abort("told to").outcomes
    assert outcome.message == "rank 0 was killed by SIGKILL"
    gang.close()


def test_a_rank_that_says_it_is_debugged_stops_no_clock_where_nobody_debugs(start_gang):
    def pretend(end):
        end.send(Debugging(is_waiting=True))
        signal.pause()

    [outcome] = start_gang([pretend]).run(RUN, within(0.3)).outcomes
    assert outcome.outcome is Outcome.TIMED_OUT


def test_a_rank_that_dies_in_the_debugger_holds_no_clock(tmp_path, job_end):
    def die(end):
        end.send(Debugging(is_waiting=True))
        os.kill(os.getpid(), signal.SIGKILL)

    ranks = fork_ranks([0, 1], obeying([[die], [wait]]))
    local_ranks = LocalRanks(ranks, tmp_path, lambda _pids: ())
    gang = Gang([local_ranks], limits=LIMITS, end=job_end, may_be_held=True)
    gang.start()
    step = gang.run(RUN, within(1000))
    assert step.leader.message.startswith("rank 0 was killed by SIGKILL")
    assert {each.rank for each in step.outcomes} == {0, 1}
    gang.close()


def test_a_driver_can_start_the_clock_anew(start_gang):
    def start_clock_and_wait(end):
        end.send(Released(nodeid=TEST, world_size=2))
        signal.pause()

    gang = start_gang([start_clock_and_wait])
    [outcome] = gang.run(RUN, within(1000, anew=of_test(0.1))).outcomes
    assert outcome.message.startswith("no end after 0.1 s (limits.test)")


def test_an_observed_end_is_reported_with_its_skip_code(start_gang):
    step = start_gang([report(PASSED)], [announce_and_leave(76)]).run(RUN, DEADLINES)
    [_, skipped] = ends_of(step, TEST, 2, {})
    assert (skipped.nodeid, skipped.rank, skipped.outcome) == (TEST, 1, Outcome.SKIPPED)
    assert (skipped.skip_code, skipped.skip_kind) == (76, SkipKind.ENVIRONMENT)


def consequences(step):
    return {each.rank: each.consequence for each in step.outcomes}


def test_a_crash_within_the_grace_leads_over_the_symptom_that_came_before_it(start_gang):
    told, tell = os.pipe()

    def die_when_told(_end):
        os.read(told, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    def complain(end):
        report(WAITED_IN_VAIN, PASSED)(end)
        os.write(tell, b".")
        signal.pause()

    try:
        step = start_gang([complain], [die_when_told]).run(RUN, DEADLINES)
    finally:
        os.close(told)
        os.close(tell)
    assert outcomes(step) == {0: Outcome.FAILED, 1: Outcome.CRASHED}
    assert step.leader.rank == 1
    assert consequences(step) == {0: True, 1: False}


def test_a_rank_that_its_peers_waited_for_in_vain_leads(start_gang):
    step = start_gang([report(WAITED_IN_VAIN, PASSED)], [wait]).run(RUN, DEADLINES)
    assert (step.leader.rank, step.leader.outcome) == (1, Outcome.TIMED_OUT)
    assert step.leader.message.startswith(
        "rank 0 waited for it in vain; stopped 0.1 s after rank 0 failed (limits.peer_grace)"
    )
    assert consequences(step) == {0: True, 1: False}


MARKED = TimeLimit(value=0.2, setting="@pytest.mark.time_limit")
OF_DRIVER = TimeLimit(value=0.1, setting="--ranks-timeout", margin=0.2)


@pytest.mark.parametrize(
    ("symptoms", "deadlines", "message"),
    [
        (0, within(0.2), "no end after 0.2 s (limits.test), in the set-up of this test"),
        (0, Deadlines(limit=MARKED), "no end after 0.2 s (@pytest.mark.time_limit), in the set-up of this test"),
        (
            0,
            Deadlines(limit=OF_DRIVER),
            "no end after 0.3 s (--ranks-timeout = 0.1, plus 0.2 s), in the set-up of this test",
        ),
        (
            0,
            Deadlines(limit=MARKED, during="while it slept"),
            "no end after 0.2 s while it slept (@pytest.mark.time_limit)",
        ),
        (1, within(3), "rank 0 waited for it in vain; no end after 3 s (limits.test), in the set-up of this test"),
        (
            2,
            within(3),
            "ranks 0 and 1 waited for it in vain; no end after 3 s (limits.test), in the set-up of this test",
        ),
    ],
)
def test_a_time_out_names_its_limit_and_what_sets_it(tmp_path, job_end, symptoms, deadlines, message):
    ranks = fork_ranks(range(symptoms + 1), obeying([*[[report(WAITED_IN_VAIN, PASSED)]] * symptoms, [wait]]))
    gang = Gang([LocalRanks(ranks, tmp_path, lambda _pids: ())], limits=replace(LIMITS, peer_grace=60), end=job_end)
    gang.start()
    step = gang.run(RUN, deadlines)
    gang.close()
    assert step.leader.outcome is Outcome.TIMED_OUT
    assert step.leader.message.startswith(message)


def test_where_there_are_only_symptoms_the_first_leads(start_gang):
    step = start_gang([report(WAITED_IN_VAIN, PASSED)], [report(WAITED_IN_VAIN, PASSED)]).run(RUN, DEADLINES)
    assert step.leader is step.outcomes[0]
    assert consequences(step) == {0: False, 1: False}


def wait_in_distributed(_end):
    # As faulthandler would write it, into a file that is not asked for.
    text = (
        'Current thread 0x1 (most recent call first):\n  File "/x/site-packages/torch/distributed/c.py", line 9 in w\n'
    )
    signal.signal(STACKS_SIGNAL, lambda *_: Path("rank-1.stacks.txt").write_text(text))
    while True:
        signal.pause()


def test_the_peer_of_a_rank_that_skipped_is_aborted_once_it_waits(start_gang, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = start_gang([report(SKIPPED)], [wait_in_distributed]).run(RUN, DEADLINES)
    aborted = step.outcomes[1]
    assert (aborted.outcome, aborted.caused_by) == (Outcome.ABORTED, 0)


def test_the_peer_of_a_rank_that_skipped_may_go_on_with_what_it_does(start_gang):
    def skip_later(end):
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
        time.sleep(0.7)
        end.send(SKIPPED)

    assert outcomes(start_gang([report(SKIPPED)], [skip_later]).run(RUN, DEADLINES)) == {
        0: Outcome.SKIPPED,
        1: Outcome.SKIPPED,
    }


def test_the_peer_of_a_rank_that_skipped_is_aborted_at_the_limit(start_gang):
    step = start_gang([report(SKIPPED)], [wait]).run(RUN, within(0.5, skip=0.1))
    aborted = step.outcomes[1]
    assert (aborted.outcome, aborted.caused_by) == (Outcome.ABORTED, 0)
    assert aborted.message.startswith("aborted by rank 0, which skipped")
    assert not step.is_clean


def test_the_peer_of_a_rank_that_may_skip_alone_has_all_its_time(start_gang):
    deadlines = within(0.5)
    step = start_gang([report(SKIPPED)], [wait]).run(RUN, deadlines)
    assert (step.leader.rank, step.leader.outcome) == (1, Outcome.TIMED_OUT)


def test_the_peers_of_a_skip_have_more_time_than_those_of_a_failure():
    assert SKIP_GRACES > 1


def test_output_is_kept_of_a_rank_that_was_killed_in_the_middle_of_a_line(start_gang, tmp_path):
    def print_and_die(_end):
        os.write(1, b"almost don")
        os.kill(os.getpid(), signal.SIGKILL)

    gang = start_gang([print_and_die])
    step = gang.run(RUN, DEADLINES)
    outputs = gang.take_output(TEST)
    [ended] = ends_of(step, TEST, 1, outputs)
    assert ended.stdout == outputs[0].stdout == "almost don"
    assert (tmp_path / "rank-0.log").read_text() == "--- stdout of t::x ---\nalmost don\n"
