"""Multi-process tests under plain pytest and unittest, without an agent."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

SUITE = """
    import ctypes, functools, os, signal, subprocess, sys, time, unittest
    import pytest, torch
    import torch.distributed as dist
    from allranks.testing import MultiProcContinuousTest, MultiProcessTestCase

    def decorated(test):
        @functools.wraps(test)
        def wrapper(self):
            return test(self)
        return wrapper

    class Case(MultiProcessTestCase):
        peer_grace = 0.3

        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    class TestRanks(Case):
        def test_passes(self):
            dist.init_process_group("gloo", init_method=self.init_method, rank=self.rank, world_size=self.world_size)
            total = torch.tensor([self.rank + 1.0])
            dist.all_reduce(total)
            self.assertEqual(total, torch.tensor([3.0]))

        def test_fails(self):
            print("this is", self.rank)
            os.write(2, b"to the descriptor\\n")
            if self.rank == 1:
                raise ValueError("rank 1 broke first")
            time.sleep(1000)  # rank 0 waits here

        def test_segfaults(self):
            if self.rank == 1:
                ctypes.string_at(0)

        def test_one_skips(self):
            if self.rank == 1:
                self.skipTest("rank 1 alone")

        def test_all_skip_with_a_code(self):
            sys.exit(77)

        def test_all_skip(self):
            pytest.skip("nothing to do")

        @pytest.mark.time_limit(1)
        def test_hangs(self):
            if self.rank == 1:
                time.sleep(1000)  # rank 1 hangs here

        def test_fails_in_a_subtest(self):
            with self.subTest(number=1):
                self.fail("in a part")

        @unittest.expectedFailure
        def test_is_expected_to_fail(self):
            self.fail("known")

        def test_leaves_a_process(self):
            subprocess.Popen(["sleep", "1000"], env={"OF_A_TEST": "1"})

        def test_leaves_a_process_in_a_session_of_its_own(self):
            subprocess.Popen(["sleep", "1000"], env={**os.environ, "OF_A_TEST": "1"}, start_new_session=True)

        def test_does_not_touch_processes_of_others(self): ...

    class TestOthers(Case):
        def setUp(self):
            super().setUp()
            self.other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

        def tearDown(self):
            super().tearDown()
            assert self.other.poll() is None

        def test_passes(self): ...

        def doCleanups(self):
            done = super().doCleanups()
            assert self.other.poll() is None, "a process of the launching process was killed"
            self.other.stdin.close()
            assert self.other.wait() == 0
            return done

    class TestExits(Case):
        def setUp(self):
            super().setUp()
            self.skip_return_code_checks = [self.test_any_end_will_do.__wrapped__]
            self.special_return_code_checks = {self.test_should_abort.__wrapped__: -signal.SIGABRT}

        @decorated
        def test_any_end_will_do(self):
            os._exit(3)

        @decorated
        def test_should_abort(self): ...

    class TestNoRanks(MultiProcessTestCase):
        def test_needs_ranks(self): ...

    class TestSetUp(Case):
        def setUp(self):
            super().setUp()
            raise RuntimeError("after the start")

        def test_in_vain(self):
            time.sleep(1000)

    class TestFiles(Case):
        seen = set()

        def tearDown(self):
            super().tearDown()
            assert self.file_name not in self.seen
            self.seen.add(self.file_name)

        def test_file_1(self): ...
        def test_file_2(self): ...

    class TestClass(MultiProcContinuousTest):
        world_size = 2
        peer_grace = 0.3

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_a_keeps(self):
            type(self).left = True

        def test_b_finds(self):
            assert self.left

        def test_c_fails(self):
            assert self.rank == 0, "rank 1 is wrong"

        def test_d_is_fresh(self):
            assert not hasattr(self, "left")
            dist.barrier()
"""

LAST = """
    import os
    from pathlib import Path

    def test_nothing_is_left():
        ours = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_ours(entry)]
        assert not ours

    def is_ours(process):
        try:
            has_mark = b"OF_A_TEST=1" in (process / "environ").read_bytes()
            return has_mark or int((process / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
        except OSError:
            return False
"""


class Report:
    """The result of each test in a JUnit report, by its class and name."""

    def __init__(self, path):
        document = ET.parse(path)  # noqa: S314 - our own
        self.cases = {f"{case.get('classname')}.{case.get('name')}": case for case in document.iter("testcase")}

    def case(self, name):
        return next(case for key, case in self.cases.items() if f".{key}".endswith(f".{name}"))

    def outcome(self, name):
        return next((child.tag for child in self.case(name) if child.tag in ("failure", "error", "skipped")), "passed")

    def message(self, name):
        return next(child.get("message") for child in self.case(name) if child.get("message") is not None)

    def error(self, name):
        """The complete error text: newer versions of pytest truncate long messages."""
        lines = next(child.text for child in self.case(name) if child.tag in ("failure", "error")).splitlines()
        return "\n".join(line.removeprefix("E").strip() for line in lines if line.startswith("E "))

    def text(self, name):
        return ET.tostring(self.case(name), encoding="unicode", method="text")


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    for name, text in (("test_suite.py", SUITE), ("test_zz_last.py", LAST)):
        (folder / name).write_text(textwrap.dedent(text))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--junitxml=report.xml",
        "-o",
        "junit_logging=all",
    ]
    done = subprocess.run(
        [*command, "-W", "ignore"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return Report(folder / "report.xml")


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("TestRanks.test_passes", "passed"),
        ("TestRanks.test_fails", "failure"),
        ("TestRanks.test_segfaults", "failure"),
        ("TestRanks.test_one_skips", "failure"),
        ("TestRanks.test_all_skip_with_a_code", "skipped"),
        ("TestRanks.test_all_skip", "skipped"),
        ("TestRanks.test_hangs", "failure"),
        ("TestRanks.test_fails_in_a_subtest", "failure"),
        ("TestRanks.test_is_expected_to_fail", "skipped"),
        ("TestRanks.test_leaves_a_process", "passed"),
        ("TestRanks.test_leaves_a_process_in_a_session_of_its_own", "passed"),
        ("TestOthers.test_passes", "passed"),
        ("TestExits.test_any_end_will_do", "passed"),
        ("TestExits.test_should_abort", "failure"),
        ("TestNoRanks.test_needs_ranks", "failure"),
        ("TestSetUp.test_in_vain", "failure"),
        ("TestFiles.test_file_1", "passed"),
        ("TestFiles.test_file_2", "passed"),
        ("TestClass.test_a_keeps", "passed"),
        ("TestClass.test_b_finds", "passed"),
        ("TestClass.test_c_fails", "failure"),
        ("TestClass.test_d_is_fresh", "passed"),
        ("test_zz_last.test_nothing_is_left", "passed"),
    ],
)
def test_the_ranks_decide_the_test(report, test, outcome):
    assert report.outcome(test) == outcome, report.text(test)


@pytest.mark.parametrize(
    ("test", "pattern"),
    [
        (
            "TestRanks.test_fails",
            (
                r"rank 1 failed: ValueError: rank 1 broke first\n"
                r".*\nrank 0 was aborted by rank 1 at \S+ in test_fails$"
            ),
        ),
        (
            "TestRanks.test_segfaults",
            r"rank 1 was killed by SIGSEGV; it was in \S+ in test_segfaults\n.*\nrank 0 passed$",
        ),
        (
            "TestRanks.test_one_skips",
            r"ranks disagree: some skipped and others did not\nrank 0 passed\nrank 1 skipped: rank 1 alone$",
        ),
        (
            "TestRanks.test_hangs",
            (
                r"rank 1 timed out: not finished after 1 s \(@pytest.mark.time_limit\), in the call of this test; "
                r"it was in \S+ in test_hangs\n"
            ),
        ),
        ("TestExits.test_should_abort", r"rank 0 must exit with status -6, but its test ended without an exit$"),
        ("TestNoRanks.test_needs_ranks", r"no rank was started for .*\n.*_spawn_processes"),
        ("TestSetUp.test_in_vain", r"RuntimeError: after the start$"),
        ("TestClass.test_c_fails", r"rank 1 failed: AssertionError: rank 1 is wrong\n"),
    ],
)
def test_the_error_starts_with_the_first_cause(report, test, pattern):
    assert re.search(pattern, report.error(test), re.DOTALL), report.error(test)


def test_the_error_has_the_traceback_of_the_rank(report):
    assert 'raise ValueError("rank 1 broke first")' in report.error("TestRanks.test_fails")


def test_the_output_of_ranks_has_their_number(report):
    text = report.text("TestRanks.test_fails")
    assert "[rank 0] this is 0\n[rank 1] this is 1\n" in text
    assert "[rank 1] to the descriptor\n" in text


def test_a_skip_by_exit_code_gives_torchs_reason(report):
    assert report.message("TestRanks.test_all_skip_with_a_code") == "Need at least 2 CUDA devices"


@pytest.mark.thorough
def test_it_works_under_unittest(tmp_path):
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    tests = [
        f"test_suite.{name}"
        for name in ("TestRanks.test_passes", "TestRanks.test_all_skip", "TestRanks.test_segfaults", "TestClass")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", *tests],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Ran 7 tests" in done.stderr
    assert "FAILED (failures=2, skipped=1)" in done.stderr
    assert "rank 1 was killed by SIGSEGV" in done.stderr


@pytest.mark.thorough
def test_the_default_time_limit_is_that_of_torchs_variable(tmp_path):
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE).replace("time_limit(1)", "other"))
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "test_suite.TestRanks.test_hangs"],
        cwd=tmp_path,
        env={**environment(), "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "rank 1 timed out: not finished after 1 s (DISTRIBUTED_TESTS_DEFAULT_TIMEOUT)" in done.stderr


@pytest.mark.thorough
def test_ranks_leave_no_temporary_files(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    tests = [f"test_suite.{name}" for name in ("TestRanks.test_fails", "TestSetUp", "TestClass")]
    subprocess.run(
        [sys.executable, "-m", "unittest", *tests],
        cwd=tmp_path,
        env={**environment(), "TMPDIR": str(folder)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert list(Path(folder).iterdir()) == []
