import pytest

from allranks.testing import verify_ddp_error_logged


class Model:
    """A fake of DDP, because a failure of DDP itself needs two ranks, as in the last test."""

    def __init__(self, **log):
        self._log = log

    def _get_ddp_logging_data(self):
        return self._log


def test_the_expected_text_is_found_in_the_error():
    model = Model(iteration=3, has_error=1, error="in iteration 3: it went wrong")
    verify_ddp_error_logged(model, "it went wrong")


def test_a_cpp_stack_is_not_compared():
    model = Model(iteration=3, has_error=1, error="it went wrong")
    verify_ddp_error_logged(model, "it went wrong\nException raised from f at a.cpp:1\nframe #0")


def test_another_error_is_shown():
    with pytest.raises(AssertionError, match="logged:   all is lost"):
        verify_ddp_error_logged(Model(iteration=3, has_error=1, error="all is lost"), "it went wrong")


def test_a_log_without_an_error_lists_the_missing_fields():
    with pytest.raises(AssertionError, match="has no has_error and no error"):
        verify_ddp_error_logged(Model(iteration=3), "it went wrong")


def test_a_torch_without_the_log_is_an_error():
    with pytest.raises(RuntimeError, match="cannot be read"):
        verify_ddp_error_logged(object(), "it went wrong")


def test_ddp_of_torch_logs_an_unused_parameter(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import pytest
                import torch
                from torch.nn.parallel import DistributedDataParallel
                from allranks.testing import verify_ddp_error_logged

                class Half(torch.nn.Module):
                    def __init__(self):
                        super().__init__()
                        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

                    def forward(self, x):
                        return self.used(x)

                def test_it():
                    model = DistributedDataParallel(Half())
                    model(torch.ones(1, 2)).sum().backward()
                    with pytest.raises(RuntimeError, match="Expected to have finished reduction") as caught:
                        model(torch.ones(1, 2))
                    verify_ddp_error_logged(model, str(caught.value))
                    with pytest.raises(AssertionError, match="different error"):
                        verify_ddp_error_logged(model, "all is lost")
            """
        }
    )
    assert agent.outcomes("test_it") == ("passed", "passed")
