"""Copies of DeepSpeed's DistributedTest: their workers are ranks that allranks starts."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.thorough

COMMON = """
    import inspect, os
    import pytest, torch.distributed as dist

    class DistributedExec:
        world_size, exec_timeout = 2, 30
        set_dist_env, reuse_dist_env, non_daemonic_procs = True, False, False

        def __call__(self, request):
            body = self.run if self.is_dist_fixture else getattr(self, request.function.__name__)
            names = list(inspect.signature(body).parameters)
            self.body, self.values = body, {name: request.getfixturevalue(name) for name in names}
            sizes = [self.world_size] if isinstance(self.world_size, int) else self.world_size
            for size in sizes:
                self._launch_procs(size, f"file://{request.getfixturevalue('tmp_path')}/{type(self).__name__}-{size}")

        def _launch_procs(self, num_procs, init_method):
            if num_procs > 3:
                pytest.skip("too few devices")
            start = self._launch_non_daemonic_procs if self.non_daemonic_procs else self._launch_daemonic_procs
            start(num_procs, init_method)

        def _launch_daemonic_procs(self, num_procs, init_method):
            raise RuntimeError("a pool")

        def _launch_non_daemonic_procs(self, num_procs, init_method):
            raise RuntimeError("processes")

        def _dist_run(self, local_rank, num_procs, master_port, init_method, skip_msg=""):
            if self.set_dist_env:
                os.environ.update(RANK=str(local_rank), WORLD_SIZE=str(num_procs), MASTER_PORT=str(master_port))
            dist.init_process_group("gloo", init_method=init_method, rank=local_rank, world_size=num_procs)
            try:
                self.body(**self.values)
            except pytest.skip.Exception as skip:
                if self.non_daemonic_procs:
                    skip_msg.put(skip.msg)
                return skip.msg

        def _dist_destroy(self):
            dist.barrier()
            dist.destroy_process_group()

    class DistributedFixture(DistributedExec):
        is_dist_fixture = True

    class DistributedTest(DistributedExec):
        is_dist_test, is_dist_fixture = True, False

    class OlderTest:
        is_dist_test, started = True, []

        def __call__(self, request):
            self._launch_procs(2)

        def _launch_procs(self, num_procs):
            self.started.append(num_procs)
"""

CONFTEST = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(item):
        if getattr(item.cls, "is_dist_test", False):
            item.cls()(item._request)
            item.runtest = lambda: None
"""

SUITE = """
    import os
    import pytest, torch, torch.distributed as dist
    from common import DistributedFixture, DistributedTest, OlderTest

    class Writes(DistributedFixture):
        world_size = 3

        def run(self, tmp_path):
            (tmp_path / str(dist.get_rank())).write_text(os.environ["WORLD_SIZE"])

    class Breaks(DistributedFixture):
        def run(self):
            assert dist.get_rank() == 0, "rank 1 broke"

    @pytest.fixture
    def written(request):
        Writes()(request)

    @pytest.fixture
    def broken(request):
        Breaks()(request)

    class TestRanks(DistributedTest):
        def test_sums(self):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 2 and os.environ["MASTER_PORT"].isdigit()

        def test_rank_1_raises_while_rank_0_waits(self):
            if dist.get_rank() == 1:
                raise ValueError("rank 1 broke first")
            dist.barrier()

        def test_all_skip(self):
            pytest.skip("all of them")

        def test_rank_1_skips(self):
            if dist.get_rank() == 1:
                pytest.skip("rank 1 alone")

        def test_reads_what_the_fixture_wrote(self, written, tmp_path):
            assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["3", "3", "3"]

        def test_has_a_broken_fixture(self, broken):
            pass

    class TestSizes(DistributedTest):
        world_size = [2, 3]

        def test_passes_in_each(self):
            assert dist.get_world_size() in (2, 3)

        def test_fails_in_the_first(self):
            assert dist.get_world_size() == 3

    class TestTooMany(DistributedTest):
        world_size = 4

        def test_four(self):
            pass

    class TestWithoutEnvironment(DistributedTest):
        set_dist_env = False

        def test_no_rank(self):
            assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE"} & set(os.environ)

    class TestPool(DistributedTest):
        reuse_dist_env = True
        made = []

        @pytest.fixture(autouse=True, scope="class")
        def shared(self):
            self.made.append(1)

        def test_first(self):
            dist.barrier()

        def test_second(self):
            assert self.made == [1]

    class TestProcesses(DistributedTest):
        non_daemonic_procs = True

        def test_process_skips(self):
            pytest.skip("of two processes")

    class TestOlder(OlderTest):
        def test_starts_its_own(self):
            raise RuntimeError("not called")
"""

FILES = {"test_it.py": SUITE, "common.py": COMMON, "conftest.py": CONFTEST}


@pytest.fixture(scope="module")
def deepspeed(run_once):
    return run_once("deepspeed", FILES, launches_ranks=True)


PASSES = {
    "test_sums": 2,
    "test_reads_what_the_fixture_wrote": 2,
    "test_passes_in_each": 3,
    "test_no_rank": 2,
    "test_first": 2,
    "test_second": 2,
    "test_starts_its_own": 1,
}


@pytest.mark.parametrize(("test", "size"), PASSES.items())
def test_each_rank_of_the_last_launch_has_passed(deepspeed, test, size):
    ends = [(end.outcome, end.world_size) for end in deepspeed.arrived(test)]
    assert ends == [("passed", size)] * size, deepspeed.log


def test_a_rank_that_raises_is_the_first_failure_and_its_peer_gets_the_grace_period(deepspeed):
    [leader] = deepspeed.leaders("test_rank_1_raises_while_rank_0_waits")
    assert (leader.rank, leader.message) == (1, "ValueError: rank 1 broke first")
    [peer] = [end for end in deepspeed.arrived("test_rank_1_raises_while_rank_0_waits") if end.rank == 0]
    assert peer.consequence
    assert peer.message.startswith("aborted by rank 1 while waiting at suite/test_it.py:")
    assert peer.arrived - leader.arrived < deepspeed.config.limits.test


@pytest.mark.parametrize(
    ("test", "reason"), [("test_all_skip", "all of them"), ("test_process_skips", "of two processes")]
)
def test_all_ranks_skip(deepspeed, test, reason):
    ends = [(end.rank, end.outcome, end.message) for end in deepspeed.arrived(test)]
    assert sorted(ends) == [(0, "skipped", reason), (1, "skipped", reason)]


def test_a_skip_of_the_base_class_skips_the_test(deepspeed):
    ends = {(end.outcome, end.message) for end in deepspeed.arrived("test_four")}
    assert ends == {("skipped", "too few devices")}


def test_a_single_rank_that_skips_is_a_disagreement(deepspeed):
    assert {"skipped"} < {end.outcome for end in deepspeed.arrived("test_rank_1_skips")}


def test_a_fixture_fails_the_setup(deepspeed):
    [leader] = deepspeed.leaders("test_has_a_broken_fixture")
    assert (leader.rank, leader.outcome, leader.phase) == (1, "errored", "setup")
    assert "rank 1 broke" in leader.message


def test_no_world_size_runs_after_one_that_failed(deepspeed):
    ends = [(end.outcome, end.world_size) for end in deepspeed.arrived("test_fails_in_the_first")]
    assert ends == [("failed", 2)] * 2


def test_a_plain_pytest_has_the_same_outcomes(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "-p", "allranks.agent.plugin", "-p", "no:cacheprovider", "test_it.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert re.search("3 failed, 7 passed, 3 skipped, .*1 error", done.stdout)
    assert "rank 1 failed: ValueError: rank 1 broke first" in done.stdout
