"""Suites that query GPUs where CUDA must not be initialized: during the import, and before they start ranks."""

import pytest

from allranks.protocol.records import CollectionFailed

GPU = """
    import os
    from types import SimpleNamespace

    import torch

    INITIALISED = set()

    def initialize():
        INITIALISED.add(os.getpid())
        print("CUDA initialized in", os.getpid(), flush=True)

    # A fake GPU driver with one GPU.
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_initialized = lambda: os.getpid() in INITIALISED
    torch.cuda._lazy_init = initialize
    torch.cuda._get_device_properties = lambda index: SimpleNamespace(name="H100", major=9, minor=0)
"""

SUITE = {
    "conftest.py": GPU,
    "test_ranks.py": """
        import os
        import torch

        CAPABILITY = torch.cuda.get_device_capability()
        IMPORTED_BY = os.getpid()

        def test_a_rank_initializes_cuda_and_its_agent_does_not():
            assert CAPABILITY == (9, 0)
            assert not torch.cuda.is_initialized()
            assert torch.cuda.get_device_name(0) == "H100"
            assert torch.cuda.is_initialized()
    """,
    "test_launching.py": """
        import torch
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestLaunching(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                assert torch.cuda.get_device_capability() == (9, 0)
                self._spawn_processes()

            def test_ranks_are_forks_that_can_use_cuda(self):
                assert not torch.cuda.is_initialized()
                assert torch.cuda.get_device_name(0) == "H100"
                assert torch.cuda.is_initialized()
    """,
}


@pytest.mark.thorough
def test_ranks_are_forks_of_a_process_without_cuda(run_agent):
    agent = run_agent(SUITE)
    assert agent.outcomes("test_a_rank_initializes_cuda_and_its_agent_does_not") == ("passed", "passed")
    assert agent.outcomes("test_ranks_are_forks_that_can_use_cuda") == ("passed", "passed")


def test_a_library_that_initializes_cuda_at_import_is_named(run_agent):
    files = {
        "test_numba.py": """
            import sys
            from types import ModuleType

            from allranks.agent import gpus

            # A fake driver that is initialized, and a fake of the library that has initialized it.
            gpus._is_driver_initialized = lambda: True
            sys.modules["numba.cuda"] = ModuleType("numba.cuda")

            def test_nothing():
                pass
        """
    }
    [failed] = run_agent(files).all(CollectionFailed)
    assert failed.nodeid.endswith("test_numba.py")
    assert failed.text == (
        "Importing this file initializes CUDA, as numba.cuda does to look for GPUs unless NUMBA_DISABLE_CUDA=1 is set. "
        "Ranks are forks of this process, so they could not use CUDA."
    )
