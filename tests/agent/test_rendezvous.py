import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from agent_run import CONFIG

from allranks.agent import rendezvous as rendezvous_module
from allranks.agent.rendezvous import make_rendezvous, wait_for_store


def port_of(rendezvous):
    return int(rendezvous.environment["MASTER_PORT"])


@pytest.fixture
def held(tmp_path):
    rendezvous = make_rendezvous(replace(CONFIG, init_method="tcp"), tmp_path)
    yield rendezvous
    rendezvous.release()


def test_a_file_rendezvous_is_a_path_that_never_existed(tmp_path):
    urls = {make_rendezvous(replace(CONFIG, init_method="file"), tmp_path).url for _ in range(5)}
    assert len(urls) == 5
    assert all(url.startswith(f"file://{tmp_path}/") for url in urls)
    assert list(tmp_path.iterdir()) == []


def test_a_tcp_url_has_address_and_port(held):
    assert held.url == f"tcp://127.0.0.1:{port_of(held)}"
    assert held.environment["MASTER_ADDR"] == "127.0.0.1"


def test_an_env_rendezvous_is_in_the_environment(tmp_path):
    rendezvous = make_rendezvous(replace(CONFIG, master_addr="node0"), tmp_path)
    assert (rendezvous.url, rendezvous.environment["MASTER_ADDR"]) == ("env://", "node0")
    rendezvous.release()


def test_a_held_port_cannot_be_bound_without_so_reuseaddr(held):
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port_of(held)))


def test_a_store_can_listen_on_a_held_port(held):
    with socket.socket(socket.AF_INET6) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("::", port_of(held)))
        store.listen()
        assert store.getsockname()[1] == port_of(held)


def test_a_port_is_free_after_its_release(held):
    held.release()
    held.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port_of(held)))
        assert other.getsockname()[1] == port_of(held)


def test_an_unknown_init_method_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="'carrier-pigeon' is not one of env, tcp, file"):
        make_rendezvous(replace(CONFIG, init_method="carrier-pigeon"), tmp_path)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_wait_for_store_returns_when_the_store_listens(held, family, address):
    with socket.socket(family) as store, ThreadPoolExecutor() as pool:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind((address, port_of(held)))
        waiting = pool.submit(wait_for_store, port_of(held))
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.1)
        store.listen()
        waiting.result(timeout=0.5)


def test_wait_for_store_gives_up(held, monkeypatch):
    monkeypatch.setattr(rendezvous_module, "_STORE_TIMEOUT", 0.05)
    wait_for_store(port_of(held))
