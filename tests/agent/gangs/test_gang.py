"""Gangs whose ranks are plain functions instead of pytest sessions."""

import itertools
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from long_lists import quick

from allranks.agent import linux
from allranks.agent.channel import Debugging, End, Leaving, PhasesEnded, RankEnd, RankExit, Released, RunTest, StepEnded
from allranks.agent.diagnose import stacks
from allranks.agent.diagnose.stacks import STACKS_SIGNAL
from allranks.agent.diagnose.step_outcome import Step, StepOutcome, describe_exit, outcome_records
from allranks.agent.gangs.gang import SKIP_GRACES, Deadlines, Gang
from allranks.agent.gangs.local_ranks import CLOSED_TIMEOUT, LocalRanks, Stop, fork_ranks, stack_files
from allranks.agent.job_end import JobEnd, JobLimitError, StopRequestedError
from allranks.agent.rank.rank_setup import write_stacks_to
from allranks.protocol import skip_codes
from allranks.protocol.config import TimeLimit, TimeLimits
from allranks.protocol.outcomes import Outcome, Phase, SkipKind
from allranks.protocol.records import Location, TestSlow

LIMITS = TimeLimits(process_group=20, test=20, job=20, peer_grace=0.1)
TEST = "t::x"
RUN = RunTest(index=0, nodeid=TEST, following=None)
STARTED = StepEnded()
PASSED = StepEnded(nodeid=TEST)


def phases(when, outcome, message=""):
    return (Phase(when=when, outcome=Outcome(outcome), duration=0.5, message=message),)


FAILED = StepEnded(nodeid=TEST, phases=phases("call", "failed", "broken"))
SKIPPED = StepEnded(nodeid=TEST, phases=phases("setup", "skipped", "not here"), early_skip=True)
FAILED_WAIT = PhasesEnded(nodeid=TEST, phases=phases("call", "failed", "peer closed connection"), is_symptom=True)


def of_test(seconds):
    return TimeLimit(value=seconds, setting="limits.test")


def within(seconds, **more):
    return Deadlines(limit=of_test(seconds), **more)


DEADLINES = within(20, skip=0.1)


def phase(when, outcome="passed", message=""):
    return PhasesEnded(nodeid=TEST, phases=phases(when, outcome, message))


def rank_main_of(answers):
    """Return the main function of ranks, which report their start and then answer each command with the next answer."""

    def rank_main(rank, connection, _call_log):
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

    return rank_main


class Records(list):
    """A journal that keeps its records."""

    write = list.append


def report(*answers):
    def send_all(end):
        for answer in answers:
            end.send(answer)

    return send_all


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


def send_garbage(end):
    end._socket.sendall(b'\n\x1e{"event": ["x"]}\n')
    signal.pause()


def wait(_end):
    signal.pause()


def orphans_since(known):
    return lambda _pids: linux.children() - known


@pytest.fixture
def job_end():
    end = JobEnd()
    yield end
    end.close()


@pytest.fixture
def start_gang(tmp_path, job_end):
    gangs = []

    def start(*answers, journal=None, process_group=LIMITS.process_group):
        journal = Records() if journal is None else journal
        known = linux.children()
        ranks = fork_ranks(range(len(answers)), rank_main_of(answers))
        limits = replace(LIMITS, process_group=process_group)
        gang = Gang([LocalRanks(ranks, tmp_path, orphans_since(known))], limits=limits, journal=journal, end=job_end)
        gangs.append(gang)
        assert gang.start().is_clean
        return gang

    yield start
    for gang in gangs:
        gang.close()


def outcomes(step):
    return {outcome.rank: outcome.outcome for outcome in step.outcomes}


def test_a_step_ends_with_the_report_of_the_last_rank(start_gang):
    step = start_gang([report(PASSED)], [report(PASSED)]).run(RUN, DEADLINES)
    assert outcomes(step) == {0: Outcome.PASSED, 1: Outcome.PASSED}
    assert step.is_clean
    assert step.primary_failure is None


@pytest.fixture
def slow_gang(tmp_path, job_end, monkeypatch):
    """Two ranks that are slow after half a second, the first of which ends after 0.7 s."""

    def end_late(end):
        write_stacks_to(tmp_path / "rank-0.stacks.txt")
        time.sleep(0.7)
        end.send(PASSED)

    def wait_without_a_handler(end):
        time.sleep(1.4)
        end.send(PASSED)

    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    limits = replace(LIMITS, process_group=1)
    known = linux.children()
    ranks = fork_ranks(range(2), rank_main_of([[end_late], [wait_without_a_handler]]))
    local_ranks = LocalRanks(ranks, tmp_path, orphans_since(known), stacks=stack_files(tmp_path, range(2)))
    records = Records()
    gang = Gang([local_ranks], limits=limits, journal=records, end=job_end)
    gang.start()
    yield gang, records
    gang.close()


def test_a_slow_test_is_reported_with_the_locations_of_its_ranks(slow_gang):
    gang, records = slow_gang
    step = gang.run(RUN, within(20))
    assert outcomes(step) == {0: Outcome.PASSED, 1: Outcome.PASSED}
    first, second = records
    assert (first.nodeid, first.ended, second.ended) == (TEST, (), (0,))
    assert 0.5 <= first.seconds < second.seconds
    assert second.seconds >= 1
    known, unknown = first.locations
    assert (known.ranks, known.is_waiting) == ((0,), False)
    assert known.frame.endswith(" in end_late")
    assert [unknown] == list(second.locations) == [Location(ranks=(1,), frame="", is_waiting=False)]


def test_a_rank_that_ends_after_a_slow_line_has_no_stacks_of_that_time(start_gang, tmp_path):
    def die_late(_end):
        write_stacks_to(tmp_path / "rank-0.stacks.txt")
        time.sleep(0.5)
        os._exit(3)

    records = Records()
    [ended] = start_gang([die_late], journal=records, process_group=0.4).run(RUN, within(20)).outcomes
    assert [location.frame.rpartition(" ")[2] for location in records[0].locations] == ["die_late"]
    assert (ended.outcome, ended.stacks.text) == (Outcome.CRASHED, "")


def test_a_hang_is_located_anew_after_a_slow_line(start_gang, tmp_path):
    def move_on(_end):
        write_stacks_to(tmp_path / "rank-0.stacks.txt")
        time.sleep(0.5)
        wait_elsewhere()

    def wait_elsewhere():
        time.sleep(60)

    records = Records()
    [hung] = start_gang([move_on], journal=records, process_group=0.4).run(RUN, within(0.7)).outcomes
    assert [location.frame.rpartition(" ")[2] for location in records[0].locations] == ["move_on"]
    assert hung.stacks.innermost.endswith(" in wait_elsewhere")


def test_a_rank_that_waits_for_a_signal_does_not_notice_that_it_is_slow(start_gang, tmp_path):
    def wait_for_a_signal(end):
        write_stacks_to(tmp_path / "rank-0.stacks.txt")
        signal.pause()
        end.send(PASSED)

    records = Records()
    [hung] = start_gang([wait_for_a_signal], journal=records, process_group=0.4).run(RUN, within(0.7)).outcomes
    assert hung.outcome is Outcome.TIMED_OUT
    assert [slow.ended for slow in records] == [(), ()]


def test_a_peer_that_waits_for_a_signal_does_not_notice_a_skip(start_gang, tmp_path):
    def wait_for_a_signal(end):
        write_stacks_to(tmp_path / "rank-0.stacks.txt")
        signal.pause()
        end.send(PASSED)

    step = start_gang([wait_for_a_signal], [report(SKIPPED)]).run(RUN, within(1, skip=0.1))
    assert outcomes(step) == {0: Outcome.ABORTED, 1: Outcome.SKIPPED}


def test_a_launcher_reports_that_the_test_of_its_ranks_is_slow(start_gang):
    slow = TestSlow(nodeid=TEST, seconds=2.0, ended=(1,), locations=())

    def report_its_ranks(end):
        end.send(Released(nodeid=TEST, world_size=2))
        end.send(slow)
        time.sleep(0.5)
        end.send(PASSED)

    records = Records()
    start_gang([report_its_ranks], journal=records, process_group=0.2).run(RUN, within(20))
    assert records == [slow]


def test_the_first_failure_is_primary_and_peers_get_the_grace(start_gang):
    step = start_gang([wait], [report(FAILED)]).run(RUN, DEADLINES)
    assert step.primary_failure.rank == 1
    assert outcomes(step) == {1: Outcome.FAILED, 0: Outcome.ABORTED}
    assert (step.outcomes[1].consequence, step.outcomes[1].caused_by) == (True, 1)


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    quick(
        3,
        [
            (leave(0), Outcome.CRASHED, "rank 0 exited with code 0 during the test"),
            (leave(3), Outcome.CRASHED, "rank 0 exited with code 3 during the test"),
            (announce_and_leave(90), Outcome.CRASHED, "rank 0 exited with code 90 during the test"),
            (announce_and_leave(72), Outcome.SKIPPED, skip_codes.reason_of_exit(72)),
            (leave(72), Outcome.CRASHED, "rank 0 exited with code 72 during the test"),
            (announce_and_leave(77, announced=72), Outcome.CRASHED, "rank 0 exited with code 77 during the test"),
            (lambda _: os.kill(os.getpid(), signal.SIGKILL), Outcome.CRASHED, "rank 0 was killed by SIGKILL"),
            (close_connection, Outcome.CRASHED, "rank 0 closed its connection to the supervisor and was killed"),
            (send_garbage, Outcome.CRASHED, "rank 0 wrote to its connection to the supervisor and was killed"),
        ],
    ),
)
def test_a_rank_that_ends_without_a_report_is_described_by_its_exit(start_gang, answer, outcome, message):
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


@pytest.mark.thorough
def test_a_stopped_rank_that_reads_no_command_does_not_block_others(start_gang):
    gang = start_gang([stop_first(report(PASSED)), pass_long], [report(PASSED), report(StepEnded(nodeid=LONG))])
    assert gang.run(RUN, DEADLINES).is_clean
    step = gang.run(long_run(), within(1))
    assert outcomes(step) == {0: Outcome.TIMED_OUT, 1: Outcome.PASSED}
    assert step.primary_failure.message.endswith("it is stopped (SIGSTOP)")


def test_a_stopped_rank_gets_the_rest_of_its_command_when_it_continues(start_gang):
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


@pytest.mark.parametrize("die", quick(1, [leave(3), lambda _: os.kill(os.getpid(), signal.SIGKILL), close_connection]))
def test_a_rank_that_dies_while_it_reads_a_long_command_has_crashed(start_gang, die):
    def pass_and_die(end):
        end.send(PASSED)
        end._socket.recv(1, socket.MSG_PEEK)  # the next command has begun to arrive
        die(end)

    gang = start_gang([pass_and_die], [report(PASSED), pass_long])
    assert gang.run(RUN, DEADLINES).is_clean
    step = gang.run(long_run(), DEADLINES)
    assert outcomes(step) == {0: Outcome.CRASHED, 1: Outcome.PASSED}


@pytest.mark.thorough
def test_a_rank_that_shuts_its_connection_down_is_killed(start_gang):
    def shut_down(end):
        end._socket.shutdown(socket.SHUT_RD)
        end.send(PASSED)
        signal.pause()

    gang = start_gang([shut_down])
    assert gang.run(RUN, DEADLINES).is_clean
    [ended] = gang.run(long_run(), DEADLINES).outcomes
    assert ended.message == "rank 0 closed its connection to the supervisor and was killed"


def test_a_rank_that_exits_slowly_has_not_closed_its_connection(start_gang, monkeypatch):
    is_readable = linux.is_readable
    monkeypatch.setattr(
        linux, "is_readable", lambda end, seconds: is_readable(end, seconds) and seconds != CLOSED_TIMEOUT
    )
    [ended] = start_gang([leave(3)]).run(RUN, DEADLINES).outcomes
    assert ended.message == "rank 0 exited with code 3 during the test"


def test_a_report_before_an_exit_counts(start_gang):
    def report_and_leave(end):
        end.send(FAILED)
        os._exit(1)

    [outcome] = start_gang([report_and_leave]).run(RUN, DEADLINES).outcomes
    assert (outcome.outcome, outcome.message) == (Outcome.FAILED, "broken")


def test_an_exit_between_two_tests_is_an_outcome_of_the_second(start_gang):
    def report_and_leave(end):
        end.send(PASSED)
        os._exit(1)

    gang = start_gang([report_and_leave])
    assert outcomes(gang.run(RUN, DEADLINES)) == {0: Outcome.PASSED}
    assert outcomes(gang.run(RUN, DEADLINES)) == {0: Outcome.CRASHED}


@pytest.mark.thorough
def test_an_exit_after_the_ranks_own_part_counts_while_a_peer_is_in_the_test(start_gang):
    def report_and_leave(end):
        end.send(PASSED)
        os._exit(1)

    step = start_gang([wait], [report_and_leave]).run(RUN, DEADLINES)
    assert (step.primary_failure.rank, outcomes(step)) == (1, {0: Outcome.ABORTED, 1: Outcome.CRASHED})
    assert (
        step.primary_failure.message
        == "rank 1 exited with code 1 during the test, after it had ended its own part of the test"
    )


def test_a_report_of_another_test_is_ignored(start_gang):
    stale = StepEnded(nodeid="t::before")
    step = start_gang([report(stale, FAILED, PASSED)]).run(RUN, DEADLINES)
    assert outcomes(step) == {0: Outcome.FAILED}


def test_the_first_failed_phase_decides(start_gang):
    step = start_gang([report(phase("setup"), phase("call", "failed", "broken"), PASSED)]).run(RUN, DEADLINES)
    [outcome] = step.outcomes
    assert (outcome.outcome, outcome.message) == (Outcome.FAILED, "broken")


def test_the_phases_of_a_rank_are_kept(start_gang):
    step = start_gang([report(phase("setup"), phase("call"), phase("teardown"), PASSED)]).run(RUN, DEADLINES)
    assert [phase.when for phase in step.phases[0]] == ["setup", "call", "teardown"]
    [passed] = outcome_records(step, TEST, 1, {})
    assert passed.seconds == (1.5,)


def test_an_exit_with_a_skip_code_after_the_call_is_a_crash(start_gang):
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


def test_data_of_a_forked_child_is_ignored_and_noted(start_gang):
    def fork_and_fail(end):
        fork_and(report(PASSED))(end)
        end.send(FAILED)

    step = start_gang([fork_and_fail]).run(RUN, DEADLINES)
    assert outcomes(step) == {0: Outcome.FAILED}
    assert step.foreign_senders == {0}


def test_data_of_a_forked_child_is_noted_only_in_its_own_test(start_gang):
    def fork_and_pass(end):
        fork_and(report(FAILED))(end)
        end.send(PASSED)

    gang = start_gang([fork_and_pass, report(PASSED)])
    assert gang.run(RUN, DEADLINES).foreign_senders == {0}
    assert gang.run(RUN, DEADLINES).foreign_senders == set()


@pytest.mark.thorough
@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
@pytest.mark.parametrize("moment", range(6))
def test_the_system_clock_may_be_set_at_any_moment_of_a_test(monkeypatch, start_gang, jump, moment):
    real, looks = time.time, itertools.count()
    gang = start_gang([wait], [report(FAILED)], [wait])
    select = gang._selector.select

    def set_the_day_and_select(timeout):
        if next(looks) == moment:
            monkeypatch.setattr(time, "time", lambda: real() + jump)
        return select(timeout)

    gang._selector.select = set_the_day_and_select
    step = gang.run(RUN, within(20))
    assert [(outcome.rank, outcome.caused_by) for outcome in step.outcomes] == [(1, None), (0, 1), (2, 1)]
    ends = outcome_records(step, RUN.nodeid, 3, {})
    assert [end.rank for end in sorted(ends, key=lambda end: end.arrived)] == [1, 0, 2]
    assert all(end.observed < 20 for end in ends)


def test_an_aborted_step_keeps_earlier_reports(start_gang, job_end):
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
    step = gang.abort("stopped")
    assert outcomes(step) == {0: Outcome.FAILED, 1: Outcome.ABORTED}
    assert {outcome.message.partition(" ")[0] for outcome in step.outcomes} == {"broken", "stopped"}


def test_end_waits_until_all_ranks_have_exited(start_gang):
    gang = start_gang([report(PASSED), None], [report(PASSED), None])
    gang.run(RUN, DEADLINES)
    assert outcomes(gang.end()) == {0: Outcome.PASSED, 1: Outcome.PASSED}


def test_close_leaves_no_child_and_no_descriptor(tmp_path, job_end):
    known, before = linux.children(), open_descriptors()
    local_ranks = LocalRanks(fork_ranks(range(3), rank_main_of([[wait]] * 3)), tmp_path, orphans_since(known))
    Gang([local_ranks], limits=LIMITS, journal=Records(), end=job_end).close()
    assert linux.children() == known
    assert open_descriptors() == before


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.thorough
def test_a_rank_that_was_inspected_stays_frozen_until_it_is_stopped(tmp_path):
    def lead_and_wait(_end):
        signal.signal(STACKS_SIGNAL, lambda *_: None)
        os.setsid()
        while True:
            signal.pause()

    local_ranks = LocalRanks(
        fork_ranks([0], rank_main_of([[lead_and_wait]])), tmp_path, orphans_since(linux.children())
    )
    [pid] = local_ranks.pids
    try:
        local_ranks.send(RUN)
        assert is_soon(lambda: linux.session_of(pid) == pid)
        local_ranks.stop([0], Stop.FREEZE)
        assert not local_ranks.inspect([0])().hangs[0].held
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


def test_processes_of_a_stopped_rank_are_killed_and_not_reported(tmp_path, job_end):
    def start_another_and_wait(end):
        os.setsid()
        if os.fork():
            end.send(FAILED)
        signal.pause()

    known = linux.children()
    gang = Gang(
        [LocalRanks(fork_ranks([0], rank_main_of([[start_another_and_wait]])), tmp_path, orphans_since(known))],
        limits=LIMITS,
        journal=Records(),
        end=job_end,
    )
    gang.start()
    gang.run(RUN, DEADLINES)
    assert gang.close() == []
    assert linux.children() == known


@pytest.mark.thorough
@pytest.mark.parametrize("closes", [True, False], ids=["after its connection", "after all"])
def test_processes_that_a_slow_rank_leaves_behind_are_reported(tmp_path, job_end, closes):
    """On a busy host an exit takes seconds, and the rank is killed."""

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
    ranks = LocalRanks(fork_ranks([0], rank_main_of([[leave_another_and_linger]])), tmp_path, orphans_since(known))
    gang = Gang([ranks], limits=LIMITS, journal=Records(), end=job_end)
    with linux.adopting_orphans():
        gang.start()
        assert gang.run(RUN, DEADLINES).is_clean
        assert gang.end().primary_failure is None
        assert [left.rank for left in gang.close()] == [0]
    assert linux.children() == known


@pytest.mark.parametrize(
    ("outcomes_and_reports", "is_clean"),
    [
        ([("passed", {})] * 2, True),
        ([("skipped", {"early_skip": True})] * 2, True),
        ([("skipped", {"early_skip": True}), ("passed", {})], False),
        ([("skipped", {})] * 2, False),
        ([("xfailed", {})] * 2, False),
        ([("failed", {}), ("passed", {})], False),
        ([("passed", {"left": ("builtins",)}), ("passed", {})], False),
        ([("passed", {"has_exited": True}), ("passed", {})], False),
        ([("skipped", {"early_skip": True, "left": ("builtins",)})] * 2, False),
    ],
)
def test_a_gang_is_kept_only_if_all_ranks_passed_or_all_skipped_early(outcomes_and_reports, is_clean):
    made = [
        StepOutcome(rank=rank, at=0.0, outcome=Outcome(outcome), report=StepEnded(**report))
        for rank, (outcome, report) in enumerate(outcomes_and_reports)
    ]
    assert Step(outcomes=made).is_clean is is_clean


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"status": 0}, "exited with code 0 during the test"),
        ({"status": 255}, "exited with code 255 during the test"),
        ({"status": -11}, "was killed by SIGSEGV"),
        ({"status": -63}, "was killed by signal 63"),
        ({"status": -9, "by_memory_killer": True}, "was killed by the kernel's out-of-memory killer"),
        ({"status": None, "lost": "the agent of node 1 is gone"}, "is lost: the agent of node 1 is gone"),
    ],
)
def test_an_exit_is_described(end, words):
    assert describe_exit(RankExit(rank=0, at=0.0, **end)) == words


def test_a_stop_request_interrupts_a_step(start_gang, job_end):
    gang = start_gang([wait])
    job_end.request_stop()
    with pytest.raises(StopRequestedError):
        gang.run(RUN, DEADLINES)


@pytest.mark.thorough
def test_the_time_limit_of_the_job_interrupts_a_step_and_names_the_hanging_rank(start_gang, job_end, monkeypatch):
    gang = start_gang([wait])
    monkeypatch.setattr(job_end, "_deadline", 0.0)
    with pytest.raises(JobLimitError):
        gang.run(RUN, DEADLINES)
    [outcome] = gang.stop_at_job_limit("the time is up").outcomes
    assert outcome.outcome is Outcome.TIMED_OUT
    assert outcome.message.startswith("the time is up, in the set-up of this test")


def test_an_exit_that_came_with_the_stop_request_is_not_lost(tmp_path, job_end):
    [rank] = fork_ranks([0], rank_main_of([[wait]]))
    gang = Gang([LocalRanks([rank], tmp_path, lambda _pids: ())], limits=LIMITS, journal=Records(), end=job_end)
    gang.start()
    rank.signal(signal.SIGKILL)
    assert linux.is_readable(rank.pidfd, 10)
    job_end.request_stop()
    with pytest.raises(StopRequestedError):
        gang.run(RUN, DEADLINES)
    [outcome] = gang.abort("stopped").outcomes
    assert outcome.message == "rank 0 was killed by SIGKILL"
    gang.close()


@pytest.mark.thorough
def test_a_debugging_report_does_not_pause_the_clock_without_a_debugger(start_gang):
    def pretend(end):
        end.send(Debugging(is_waiting=True))
        signal.pause()

    [outcome] = start_gang([pretend]).run(RUN, within(0.3)).outcomes
    assert outcome.outcome is Outcome.TIMED_OUT


@pytest.mark.thorough
def test_a_rank_that_dies_in_the_debugger_does_not_pause_the_clock(tmp_path, job_end):
    def die(end):
        end.send(Debugging(is_waiting=True))
        os.kill(os.getpid(), signal.SIGKILL)

    ranks = fork_ranks([0, 1], rank_main_of([[die], [wait]]))
    local_ranks = LocalRanks(ranks, tmp_path, lambda _pids: ())
    gang = Gang([local_ranks], limits=LIMITS, journal=Records(), end=job_end, may_be_debugged=True)
    gang.start()
    step = gang.run(RUN, within(1000))
    assert step.primary_failure.message.startswith("rank 0 was killed by SIGKILL")
    assert {outcome.rank for outcome in step.outcomes} == {0, 1}
    gang.close()


@pytest.mark.thorough
def test_a_launcher_can_restart_the_clock(start_gang):
    def start_clock_and_wait(end):
        end.send(Released(nodeid=TEST, world_size=2))
        signal.pause()

    gang = start_gang([start_clock_and_wait])
    [outcome] = gang.run(RUN, within(1000, after_release=of_test(0.1))).outcomes
    assert outcome.message.startswith("not finished after 0.1 s (limits.test)")


def test_a_skip_by_exit_is_recorded_with_its_code(start_gang):
    step = start_gang([report(PASSED)], [announce_and_leave(76)]).run(RUN, DEADLINES)
    [_, skipped] = outcome_records(step, TEST, 2, {})
    assert (skipped.nodeid, skipped.rank, skipped.outcome) == (TEST, 1, Outcome.SKIPPED)
    assert (skipped.skip_code, skipped.skip_kind) == (76, SkipKind.ENVIRONMENT)


def consequences(step):
    return {outcome.rank: outcome.consequence for outcome in step.outcomes}


def test_a_crash_within_the_grace_is_primary_to_an_earlier_secondary_failure(start_gang):
    reading, writing = os.pipe()

    def die_on_signal(_end):
        os.read(reading, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    def complain(end):
        report(FAILED_WAIT, PASSED)(end)
        os.write(writing, b".")
        signal.pause()

    try:
        step = start_gang([complain], [die_on_signal]).run(RUN, DEADLINES)
    finally:
        os.close(reading)
        os.close(writing)
    assert outcomes(step) == {0: Outcome.FAILED, 1: Outcome.CRASHED}
    assert step.primary_failure.rank == 1
    assert consequences(step) == {0: True, 1: False}


def test_the_rank_that_its_peers_waited_for_is_primary(start_gang):
    step = start_gang([report(FAILED_WAIT, PASSED)], [wait]).run(RUN, DEADLINES)
    assert (step.primary_failure.rank, step.primary_failure.outcome) == (1, Outcome.TIMED_OUT)
    assert step.primary_failure.message.startswith(
        "rank 0 waited for it; stopped 0.1 s after rank 0 failed (limits.peer_grace)"
    )
    assert consequences(step) == {0: True, 1: False}


MARKED = TimeLimit(value=0.2, setting="@pytest.mark.time_limit")
OF_LAUNCHER = TimeLimit(value=0.1, setting="--ranks-timeout", margin=0.2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("waiting", "deadlines", "message"),
    [
        (0, within(0.2), "not finished after 0.2 s (limits.test), in the set-up of this test"),
        (0, Deadlines(limit=MARKED), "not finished after 0.2 s (@pytest.mark.time_limit), in the set-up of this test"),
        (
            0,
            Deadlines(limit=OF_LAUNCHER),
            "not finished after 0.3 s (--ranks-timeout = 0.1, plus 0.2 s), in the set-up of this test",
        ),
        (
            0,
            Deadlines(limit=MARKED, during="while it slept"),
            "not finished after 0.2 s while it slept (@pytest.mark.time_limit)",
        ),
        (1, within(3), "rank 0 waited for it; not finished after 3 s (limits.test), in the set-up of this test"),
        (
            2,
            within(3),
            "ranks 0 and 1 waited for it; not finished after 3 s (limits.test), in the set-up of this test",
        ),
    ],
)
def test_a_time_out_names_its_limit_and_the_setting(tmp_path, job_end, waiting, deadlines, message):
    ranks = fork_ranks(range(waiting + 1), rank_main_of([*[[report(FAILED_WAIT, PASSED)]] * waiting, [wait]]))
    gang = Gang(
        [LocalRanks(ranks, tmp_path, lambda _pids: ())],
        limits=replace(LIMITS, peer_grace=60),
        journal=Records(),
        end=job_end,
    )
    gang.start()
    step = gang.run(RUN, deadlines)
    gang.close()
    assert step.primary_failure.outcome is Outcome.TIMED_OUT
    assert step.primary_failure.message.startswith(message)


def test_the_first_of_only_secondary_failures_is_reported_first(start_gang):
    step = start_gang([report(FAILED_WAIT, PASSED)], [report(FAILED_WAIT, PASSED)]).run(RUN, DEADLINES)
    assert step.primary_failure is step.outcomes[0]
    assert consequences(step) == {0: False, 1: False}


def wait_in_distributed(_end):
    # In the format of faulthandler, into the file that the supervisor reads.
    text = (
        'Current thread 0x1 (most recent call first):\n  File "/x/site-packages/torch/distributed/c.py", line 9 in w\n'
    )
    signal.signal(STACKS_SIGNAL, lambda *_: Path("rank-1.stacks.txt").write_text(text))
    time.sleep(60)


def test_the_peer_of_a_rank_that_skipped_is_aborted_once_it_waits(start_gang, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = start_gang([report(SKIPPED)], [wait_in_distributed]).run(RUN, DEADLINES)
    aborted = step.outcomes[1]
    assert (aborted.outcome, aborted.caused_by) == (Outcome.ABORTED, 0)


@pytest.mark.thorough
def test_the_peer_of_a_rank_that_skipped_may_continue_while_it_does_not_wait(start_gang):
    def skip_later(end):
        signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
        time.sleep(0.7)
        end.send(SKIPPED)

    assert outcomes(start_gang([report(SKIPPED)], [skip_later]).run(RUN, DEADLINES)) == {
        0: Outcome.SKIPPED,
        1: Outcome.SKIPPED,
    }


@pytest.mark.thorough
def test_the_peer_of_a_rank_that_skipped_is_aborted_at_the_limit(start_gang):
    step = start_gang([report(SKIPPED)], [wait]).run(RUN, within(0.5, skip=0.1))
    aborted = step.outcomes[1]
    assert (aborted.outcome, aborted.caused_by) == (Outcome.ABORTED, 0)
    assert aborted.message.startswith("aborted by rank 0, which skipped")
    assert not step.is_clean


@pytest.mark.thorough
def test_the_peer_of_a_rank_that_may_skip_alone_has_the_whole_limit(start_gang):
    deadlines = within(0.5)
    step = start_gang([report(SKIPPED)], [wait]).run(RUN, deadlines)
    assert (step.primary_failure.rank, step.primary_failure.outcome) == (1, Outcome.TIMED_OUT)


def test_the_peers_of_a_skip_have_more_time_than_those_of_a_failure():
    assert SKIP_GRACES > 1


def test_an_unfinished_line_of_a_killed_rank_is_kept(start_gang, tmp_path):
    def print_and_die(_end):
        os.write(1, b"almost don")
        os.kill(os.getpid(), signal.SIGKILL)

    gang = start_gang([print_and_die])
    step = gang.run(RUN, DEADLINES)
    outputs = gang.take_output(TEST)
    [ended] = outcome_records(step, TEST, 1, outputs)
    assert ended.stdout == outputs[0].stdout == "almost don"
    assert (tmp_path / "rank-0.log").read_text() == "--- stdout of t::x ---\nalmost don\n"
