"""torch's multi-process tests under plain pytest with the plugin, in a repository without allranks."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

SUITE = """
    import ctypes, os, sys, time
    import pytest, torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import (
        MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase
    )

    STARTED_BY = os.getpid()

    class TestMine(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_passes(self):
            dist.init_process_group(
                "gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
            )
            total = torch.tensor([self.rank + 1.0])
            dist.all_reduce(total)
            self.assertEqual(total, torch.tensor([3.0]))

        def test_is_a_fork(self):
            assert os.getppid() == STARTED_BY

        def test_segfaults_while_rank_0_passes(self):
            if self.rank == 1:
                ctypes.string_at(0)

        def test_rank_1_skips_while_rank_0_passes(self):
            if self.rank == 1:
                self.skipTest("rank 1 alone")

        @pytest.mark.time_limit(1)
        def test_hangs_after_the_peer_passed(self):
            if self.rank == 1:
                time.sleep(1000)  # rank 1 hangs here

        @pytest.mark.time_limit()
        def test_limit_without_a_number(self):
            pass

        def test_skips_with_torchs_reason(self):
            sys.exit(77)

    class TestClass(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_a_leaves_something(self):
            dist.barrier()
            assert os.getppid() == STARTED_BY
            type(self).left = True

        def test_b_finds_it(self):
            assert self.left

        def test_c_fails(self):
            if self.rank == 1:
                raise ValueError("rank 1 broke")

    class TestThreads(MultiThreadedTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def test_passes(self):
            dist.barrier()
            assert os.getpid() == STARTED_BY
"""


class Report:
    def __init__(self, path):
        cases = ET.parse(path).iter("testcase")  # noqa: S314 - our own
        self._cases = {f"{case.get('classname').rpartition('.')[2]}.{case.get('name')}": case for case in cases}

    def outcome(self, test):
        return next((child.tag for child in self._cases[test] if child.tag in ("failure", "skipped")), "passed")

    def text(self, test):
        return ET.tostring(self._cases[test], encoding="unicode", method="text")

    def message(self, test):
        return next(child.get("message") for child in self._cases[test] if child.get("message"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "test_mine.py").write_text(textwrap.dedent(SUITE))
    arguments = ["-q", "-p", "allranks.agent.plugin", "--strict-markers", "--junitxml=report.xml", "test_mine.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    return Report(Path(folder / "report.xml"))


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("TestMine.test_passes", "passed"),
        ("TestMine.test_is_a_fork", "passed"),
        ("TestMine.test_segfaults_while_rank_0_passes", "failure"),
        ("TestMine.test_rank_1_skips_while_rank_0_passes", "failure"),
        ("TestMine.test_hangs_after_the_peer_passed", "failure"),
        ("TestMine.test_limit_without_a_number", "failure"),
        ("TestMine.test_skips_with_torchs_reason", "skipped"),
        ("TestClass.test_a_leaves_something", "passed"),
        ("TestClass.test_b_finds_it", "passed"),
        ("TestClass.test_c_fails", "failure"),
        ("TestThreads.test_passes", "passed"),
    ],
)
def test_all_ranks_decide_the_outcome_of_a_test(plain, test, outcome):
    assert plain.outcome(test) == outcome


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("TestMine.test_segfaults_while_rank_0_passes", "rank 1 was killed by SIGSEGV; it was in"),
        ("TestMine.test_rank_1_skips_while_rank_0_passes", "ranks disagree: some skipped and others did not"),
        (
            "TestMine.test_hangs_after_the_peer_passed",
            "rank 1 timed out: not finished after 1 s (@pytest.mark.time_limit)",
        ),
        ("TestClass.test_c_fails", "rank 1 failed: ValueError: rank 1 broke"),
    ],
)
def test_an_error_has_the_outcomes_of_the_ranks(plain, test, words):
    assert words in plain.text(test)


def test_a_skip_has_the_reason_of_torch(plain):
    assert plain.message("TestMine.test_skips_with_torchs_reason") == "Need at least 2 CUDA devices"


def test_an_invalid_time_limit_is_an_error(plain):
    assert "time_limit() is invalid: it takes one number of seconds" in plain.text(
        "TestMine.test_limit_without_a_number"
    )
