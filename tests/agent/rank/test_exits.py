"""Which exits of a process are announced to the supervisor, and how."""

import os
import threading
import unittest

import pytest

from allranks.agent import linux
from allranks.agent.channel import Leaving, RankEnd, link_pair
from allranks.agent.rank import rank_setup
from allranks.protocol import skip_codes

TEST = "t::x"


def of_a_rank(deed):
    """The messages and the exit status of a rank that calls a function."""
    link, theirs = link_pair()
    pid = os.fork()
    if pid == 0:
        link.close()
        rank_setup.announce_exits()
        rank_setup.announce_to(RankEnd(theirs))
        rank_setup.set_running_test(TEST)
        try:
            deed()
        finally:
            os.abort()
    os.close(theirs)
    link.pid = pid
    reports = []
    try:
        while not link.at_end and linux.is_readable(link.descriptor, 20):
            reports += link.read()
        return reports, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), link.has_foreign_data
    finally:
        link.close()


def announced(status):
    reason = skip_codes.reason_of_exit(status) or ""
    return [Leaving(nodeid=TEST, status=status, reason=reason)]


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_the_main_thread_announces_its_exit_with_its_test(status):
    assert of_a_rank(lambda: os._exit(status)) == (announced(status), status, False)


def test_an_exit_after_an_assertion_that_failed_is_no_skip_of_a_test():
    def leave():
        try:
            pytest.fail("the cause")
        finally:
            os._exit(77)

    ([report], status, _) = of_a_rank(leave)
    assert (report.nodeid, report.status, status) == ("", 77, 77)


def test_the_exit_of_another_thread_is_not_announced():
    def leave_from_a_thread():
        thread = threading.Thread(target=os._exit, args=(77,))
        thread.start()
        thread.join()

    assert of_a_rank(leave_from_a_thread) == ([], 77, False)


def test_the_exit_of_a_timer_is_not_announced():
    def leave_by_a_timer():
        threading.Timer(0, os._exit, [77]).start()
        threading.Event().wait()

    assert of_a_rank(leave_by_a_timer) == ([], 77, False)


def test_the_exit_of_a_forked_child_is_not_announced():
    def fork_and_leave():
        child = os.fork()
        if child == 0:
            os._exit(77)
        os.waitpid(child, 0)
        os._exit(3)

    assert of_a_rank(fork_and_leave) == (announced(3), 3, False)


def test_an_exit_by_a_name_imported_earlier_is_announced():
    """torch's tests have ``from os import _exit``, for example."""

    def leave():
        from os import _exit

        _exit(74)

    assert of_a_rank(leave) == (announced(74), 74, False)


class Leaves(unittest.TestCase):
    """Exits in the way that the name of its test says; pytest does not collect it."""

    def in_tear_down(self):
        self.fail()

    def in_clean_up(self):
        self.addCleanup(os._exit, 77)
        self.fail()

    def in_the_test(self):
        os._exit(77)

    def tearDown(self):
        if self._testMethodName == "in_tear_down":
            os._exit(77)


class LeavesAsynchronously(unittest.IsolatedAsyncioTestCase):
    async def in_tear_down(self):
        self.fail()

    async def asyncTearDown(self):
        os._exit(77)


@pytest.mark.parametrize("case", [Leaves("in_tear_down"), Leaves("in_clean_up"), LeavesAsynchronously("in_tear_down")])
def test_an_exit_in_a_tear_down_of_unittest_is_no_skip_of_a_test(case):
    [report], status, _ = of_a_rank(case.run)
    assert (report.nodeid, status) == ("", 77)


def test_an_exit_in_a_test_of_unittest_may_be_its_skip():
    assert of_a_rank(Leaves("in_the_test").run) == (announced(77), 77, False)


def test_a_failed_announcement_does_not_prevent_the_exit():
    link, theirs = link_pair()
    pid = os.fork()
    if pid == 0:
        link.close()
        rank_setup.announce_to(RankEnd(theirs))
        rank_setup.announce_and_exit(5)
    os.close(theirs)
    link.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


def test_a_process_that_is_not_a_rank_exits_as_usual():
    pid = os.fork()
    if pid == 0:
        rank_setup.announce_and_exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6


def test_an_invalid_exit_status_raises_as_usual():
    def leave():
        try:
            os._exit("77")
        except TypeError:
            os._exit(9)

    assert of_a_rank(leave) == (announced(9), 9, False)
