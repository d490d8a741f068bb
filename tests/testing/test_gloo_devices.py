import socket

import pytest
from torch.distributed import ProcessGroupGloo

from allranks.testing import gloo_device


@pytest.mark.parametrize(
    "arguments",
    [{}, {"interface": "lo"}, {"hostname": "localhost"}, {"lazy_init": True}, {"interface": "lo", "lazy_init": True}],
    ids=str,
)
def test_a_device_is_created_from_an_interface_or_a_host_name(arguments):
    assert isinstance(gloo_device(**arguments), ProcessGroupGloo.Device)


def test_two_addresses_are_an_error():
    with pytest.raises(ValueError, match="'lo' or the host name 'here'"):
        gloo_device("lo", hostname="here")


def test_a_missing_interface_is_named():
    with pytest.raises(RuntimeError, match="nope0"):
        gloo_device("nope0")


def test_torch_gets_only_the_arguments_that_were_set(monkeypatch):
    calls = []
    monkeypatch.setattr(ProcessGroupGloo, "create_device", lambda **arguments: calls.append(arguments))
    gloo_device()
    gloo_device("eth0", lazy_init=True)
    gloo_device(hostname=socket.gethostname())
    assert calls == [
        {"hostname": "127.0.0.1"},
        {"interface": "eth0", "lazy_init": True},
        {"hostname": socket.gethostname()},
    ]


def test_ranks_communicate_over_these_devices(run_gang):
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
