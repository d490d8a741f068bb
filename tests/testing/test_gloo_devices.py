import socket

import pytest
from torch.distributed import ProcessGroupGloo

from allranks.testing import gloo_device


@pytest.mark.parametrize(
    "wanted",
    [{}, {"interface": "lo"}, {"hostname": "localhost"}, {"lazy_init": True}, {"interface": "lo", "lazy_init": True}],
    ids=str,
)
def test_a_device_is_had_by_interface_and_by_host_name(wanted):
    assert isinstance(gloo_device(**wanted), ProcessGroupGloo.Device)


def test_two_addresses_are_an_error():
    with pytest.raises(ValueError, match="'lo' or the host name 'here', not both"):
        gloo_device("lo", hostname="here")


def test_an_interface_that_is_not_there_is_named():
    with pytest.raises(RuntimeError, match="nope0"):
        gloo_device("nope0")


def test_torch_gets_what_was_asked_for_and_nothing_else(monkeypatch):
    asked = []
    monkeypatch.setattr(ProcessGroupGloo, "create_device", lambda **wanted: asked.append(wanted))
    gloo_device()
    gloo_device("eth0", lazy_init=True)
    gloo_device(hostname=socket.gethostname())
    assert asked == [
        {"hostname": "127.0.0.1"},
        {"interface": "eth0", "lazy_init": True},
        {"hostname": socket.gethostname()},
    ]


def test_ranks_talk_over_such_devices(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                from datetime import timedelta
                import pytest, torch
                import torch.distributed as dist
                from allranks.testing import gloo_device

                @pytest.mark.no_process_group
                @pytest.mark.parametrize("lazy", [False, True])
                def test_it(store, rank, world_size, lazy):
                    options = dist.ProcessGroupGloo._Options()
                    by_name = gloo_device("lo", lazy_init=lazy)
                    options._devices = [by_name, gloo_device(hostname="127.0.0.1", lazy_init=lazy)]
                    options._timeout = timedelta(seconds=60)
                    group = dist.ProcessGroupGloo(dist.PrefixStore("own", store), rank, world_size, options)
                    tensor = torch.ones(1) * rank
                    group.allreduce([tensor]).wait()
                    assert tensor.item() == 1
            """
        }
    )
    assert {agent.outcomes(f"test_it[{lazy}]") for lazy in (False, True)} == {("passed", "passed")}
