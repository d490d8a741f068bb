import socket
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from allranks.testing import create_tcp_store, reserved_port

SHORT = timedelta(seconds=2)  # in which a store can be reached, even where DNS is slow
LONG = timedelta(seconds=30)


def test_a_master_knows_its_port():
    master = create_tcp_store()
    client = create_tcp_store(is_master=False, port=master.port, timeout=LONG)
    client.set("word", "hello")
    assert master.get("word") == b"hello"


def test_many_masters_have_many_ports():
    stores = [create_tcp_store() for _ in range(20)]
    assert len({store.port for store in stores}) == 20


@pytest.mark.parametrize("use_libuv", [True, False])
def test_both_servers_can_be_used(use_libuv):
    assert create_tcp_store(use_libuv=use_libuv).libuvBackend is use_libuv


def test_the_time_limit_applies():
    store = create_tcp_store(timeout=SHORT)
    assert store.timeout == SHORT
    with pytest.raises(dist.DistStoreError, match=r"2000 ?ms|timeout"):
        store.get("nothing")


def test_a_client_without_a_port_is_an_error():
    with pytest.raises(ValueError, match="needs the port"):
        create_tcp_store(is_master=False)


def test_a_master_that_waits_on_an_unknown_port_is_an_error():
    with pytest.raises(ValueError, match="clients cannot connect"):
        create_tcp_store(world_size=2)


def test_a_master_on_a_reserved_port_waits_for_its_clients():
    with reserved_port() as port:
        stores = []

        def join():
            stores.append(create_tcp_store(world_size=2, is_master=False, port=port, timeout=LONG))

        client = threading.Thread(target=join)
        client.start()
        stores.append(create_tcp_store(world_size=2, port=port, timeout=LONG))
        client.join(30)
    assert len(stores) == 2


def test_a_reserved_port_is_assigned_to_no_other_process():
    with reserved_port() as port, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))


def test_workers_that_do_not_arrive_are_an_error_in_time():
    with reserved_port() as port, pytest.raises(dist.DistStoreError, match="1/2 clients joined"):
        create_tcp_store(world_size=2, port=port, timeout=SHORT)
