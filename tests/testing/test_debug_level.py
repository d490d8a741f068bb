import os

import pytest
import torch.distributed as dist

from allranks.testing import dist_debug_level, with_dist_debug_levels, with_nccl_blocking_wait

VARIABLE = "TORCH_DISTRIBUTED_DEBUG"


def state():
    return os.environ.get(VARIABLE), dist.get_debug_level()


@pytest.fixture(params=[None, "INFO"])
def before(request, monkeypatch):
    """The state before a test, with the variable set and unset; torch's level differs from the variable."""
    if request.param is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, request.param)
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.INFO)
    yield (request.param, dist.DebugLevel.INFO)
    dist.set_debug_level(level)


def test_the_test_runs_at_each_level_and_both_settings_are_restored(before):
    seen = []

    @with_dist_debug_levels(["OFF", "INFO", "DETAIL"])
    def body(log):
        log.append(state())
        return len(log)

    assert body(seen) == 3
    assert seen == [(level, getattr(dist.DebugLevel, level)) for level in ("OFF", "INFO", "DETAIL")]
    assert state() == before


def test_a_failure_states_the_level_and_the_level_is_restored(before):
    @with_dist_debug_levels(["OFF", "DETAIL"])
    def body():
        assert os.environ[VARIABLE] == "OFF"

    with pytest.raises(AssertionError) as caught:
        body()
    assert caught.value.__notes__ == ["under TORCH_DISTRIBUTED_DEBUG=DETAIL"]
    assert state() == before


def test_a_level_can_be_set_temporarily(before):
    with dist_debug_level("DETAIL"):
        assert state() == ("DETAIL", dist.DebugLevel.DETAIL)
    assert state() == before


@pytest.mark.parametrize("levels", [["LOUD"], ["OFF", "detail"], []])
def test_missing_and_unknown_levels_are_errors_when_decorating(levels):
    with pytest.raises(ValueError, match="OFF, INFO, DETAIL"):
        with_dist_debug_levels(levels)


def test_ranks_run_it_with_their_fixtures(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import os, torch
                import torch.distributed as dist
                from allranks.testing import with_dist_debug_levels

                @with_dist_debug_levels(["OFF", "DETAIL"])
                def test_it(rank, device, subgroup):
                    group = subgroup([0, 1])
                    tensor = torch.ones(1, device=device) * rank
                    dist.all_reduce(tensor, group=group)
                    assert tensor.item() == 1
            """
        }
    )
    assert agent.outcomes("test_it") == ("passed", "passed")


@pytest.mark.parametrize("blocking", [None, "0"])
@pytest.mark.parametrize("handling", [None, "3"])
def test_nccl_blocks_for_the_time_of_the_test(monkeypatch, blocking, handling):
    values = {"TORCH_NCCL_BLOCKING_WAIT": blocking, "TORCH_NCCL_ASYNC_ERROR_HANDLING": handling}
    for name, value in values.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)

    @with_nccl_blocking_wait
    def body(ending):
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
        assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ
        return ending()

    assert body(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        body(lambda: 1 / 0)
    assert {name: os.environ.get(name) for name in values} == values
