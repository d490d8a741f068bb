"""Suites that ask about GPUs where CUDA must not be initialized: at their import, and before they start ranks."""

GPU = """
    import os
    from types import SimpleNamespace

    import torch

    INITIALISED = set()

    def initialize():
        INITIALISED.add(os.getpid())
        print("CUDA initialized in", os.getpid(), flush=True)

    # The stand-in of a driver with one GPU.
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


def test_ranks_are_forks_of_a_process_without_cuda(run_agent):
    agent = run_agent(SUITE)
    assert agent.outcomes("test_a_rank_initializes_cuda_and_its_agent_does_not") == ("passed", "passed")
    assert agent.outcomes("test_ranks_are_forks_that_can_use_cuda") == ("passed", "passed")
