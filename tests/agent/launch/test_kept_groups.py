"""Every rank keeps the process groups of a test alive, whatever created the rank and the group.

Python frees a gloo group while it holds the GIL and waits for the threads of the group, one of which may wait for it.
"""

import pytest

FILES = {
    "test_torch.py": """
        import gc, weakref
        import torch
        import torch.distributed as dist
        from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiProcessTestCase

        def reduce(group=None):
            total = torch.ones(1)
            dist.all_reduce(total, group=group)

        class TestProcesses(MultiProcessTestCase):
            @property
            def world_size(self):
                return 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def join(self):
                store = dist.FileStore(self.file_name, 2)
                dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
                reduce()
                return weakref.ref(dist.group.WORLD)

            def test_default_group(self):
                group = self.join()
                dist.destroy_process_group()
                gc.collect()
                assert group() is not None

            def test_subgroup(self):
                self.join()
                subgroup = dist.new_group([0, 1])
                reduce(subgroup)
                group = weakref.ref(subgroup)
                dist.destroy_process_group(subgroup)
                del subgroup
                gc.collect()
                assert group() is not None

            def test_second_world(self):
                group = self.join()
                dist.destroy_process_group()
                store = dist.FileStore(self.file_name + "2", 2)
                dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
                gc.collect()
                assert group() is not None

        class TestContinuous(MultiProcContinuousTest):
            world_size = 2
            groups = []

            @classmethod
            def backend_str(cls):
                return "gloo"

            def test_a_makes_a_subgroup(self):
                subgroup = dist.new_group([0, 1])
                reduce(subgroup)
                self.groups.append(weakref.ref(subgroup))
                dist.destroy_process_group(subgroup)

            def test_b_has_it_still(self):
                gc.collect()
                assert self.groups[0]() is not None
    """,
    "test_own.py": """
        import gc, os, weakref
        import pytest
        import torch
        import torch.distributed as dist

        @pytest.mark.no_process_group
        def test_own_group(rank, world_size, shared_dir):
            store = dist.FileStore(str(shared_dir / "store"), world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
            dist.all_reduce(torch.ones(1))
            group = weakref.ref(dist.group.WORLD)
            dist.destroy_process_group()
            gc.collect()
            assert group() is not None
    """,
}


@pytest.fixture(scope="module")
def suite(run_once):
    return run_once("kept_groups", FILES)


@pytest.mark.parametrize(
    "test",
    [
        "test_default_group",
        "test_subgroup",
        "test_second_world",
        "test_a_makes_a_subgroup",
        "test_b_has_it_still",
        "test_own_group",
    ],
)
def test_a_destroyed_group_is_alive_until_the_next_test_has_ended(suite, test):
    assert suite.outcomes(test) == ("passed", "passed")
