"""Jobs on several nodes on the docker engine, against a daemon that only remembers: every way in and out."""

import io
import json
import socket
import tarfile

import pytest
import requests
from docker.errors import NotFound
from fake_daemon import ID, engine_of, ignore, refusal

from allranks.engine import agents
from allranks.engine.protocol import JobExit, NodeExit
from allranks.errors import EngineError

FIRST, SECOND = ID, f"{ID}-1"
NAME = "allranks-r-gloo-w2-g0-env-tiny-1"
REMOVED = ["remove", "remove", "remove_volume", "remove_network"]


@pytest.fixture
def spec(make_spec):
    return make_spec(image="allranks/cpu:1", run_id="r", nodes=2)


def say(client, identifier, *events):
    """Have a container say something, and end."""
    for event in events:
        line = b"\x1e" + json.dumps(event).encode() + b"\n"
        client.wire(identifier).daemon.sendall(b"\x01\0\0\0" + len(line).to_bytes(4, "big") + line)
    client.wire(identifier).daemon.shutdown(socket.SHUT_WR)


MET = {"event": "nodes_met"}


def test_the_network_is_made_first_and_removed_last_and_every_node_is_attached_before_it_starts(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        assert job.wait(ignore) == JobExit(status=0, followers=(NodeExit(status=0),))
    starts = ["attach", "start"] * 2
    assert client.names[:9] == ["create_network", "create_volume", "create", "create", "put_archive", *starts]
    assert [call[1] for call in client.calls if call[0] == "start"] == [FIRST, SECOND]
    assert client.names[-4:] == REMOVED
    assert client.calls[-2:] == [("remove_volume", NAME), ("remove_network", "net")]


def test_one_node_needs_no_network(fake, make_spec):
    client = fake()
    with engine_of(client).start(make_spec(image="i")):
        client.daemon.close()
    assert not [name for name in client.names if "network" in name]


def test_a_network_that_cannot_be_made_leaves_nothing(fake, spec):
    client = fake(create_network=refusal(500, "no such driver"))
    with pytest.raises(EngineError, match="The network of gloo-w2-g0-env/tiny could not be made") as error:
        engine_of(client).start(spec).__enter__()
    assert error.value.why == "no such driver"
    assert client.names == ["create_network"]


@pytest.mark.parametrize(
    "text",
    [
        "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network",
        "all predefined address pools have been fully subnetted",
    ],
    ids=["20.10", "28"],
)
def test_a_daemon_without_addresses_for_one_more_network_is_told_with_the_way_out(fake, spec, text):
    with pytest.raises(EngineError, match="network") as error:
        engine_of(fake(create_network=refusal(404, text))).start(spec).__enter__()
    assert "docker network prune" in error.value.remedy


def test_what_the_daemon_may_have_made_without_answering_is_removed_by_its_name(fake, spec):
    client = fake(create_network=requests.ReadTimeout("60 s"))
    with pytest.raises(EngineError, match="network"):
        engine_of(client).start(spec).__enter__()
    assert client.calls[-1] == ("remove_network", NAME)

    client = fake({("create", SECOND): requests.ReadTimeout("60 s")})
    with pytest.raises(EngineError, match="node 1"):
        engine_of(client).start(spec).__enter__()
    assert [call[1] for call in client.calls if call[0] == "remove"] == [f"{NAME}-node1", FIRST]


def test_a_name_that_somebody_else_has_is_left_to_them(fake, spec):
    client = fake(create_network=refusal(409, "network with that name already exists"))
    with pytest.raises(EngineError, match="network"):
        engine_of(client).start(spec).__enter__()
    assert "remove_network" not in client.names


@pytest.mark.parametrize("step", ["create", "attach", "start"])
def test_a_second_container_that_cannot_be_started_takes_everything_with_it_at_once(fake, spec, step, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 3600)
    client = fake({(step, SECOND): refusal(500, "no space left")})
    with pytest.raises(EngineError, match="The container of node 1 of gloo-w2-g0-env/tiny could not be") as error:
        engine_of(client).start(spec).__enter__()
    assert error.value.why == "no space left"
    assert client.names[-4:] == ([step, *REMOVED[1:]] if step == "create" else REMOVED)
    assert [call[1] for call in client.calls if call[0] == "remove"] == (
        [SECOND, FIRST] if step != "create" else [FIRST]
    )


@pytest.mark.parametrize("step", ["create_network", "create_volume", "create", "put_archive", "attach", "start"])
def test_ctrl_c_between_any_two_steps_removes_what_there_is(fake, spec, step):
    client = fake()
    perform = client._call

    def interrupted(name, *arguments):
        perform(name, *arguments)
        if name == step and not (name == "create" and arguments[0] == FIRST):
            raise KeyboardInterrupt

    client._call = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine_of(client).start(spec).__enter__()
    made = {"create": "remove", "create_volume": "remove_volume", "create_network": "remove_network"}
    wanted = [made[name] for name in client.names[:-1] if name in made and name != step]
    assert set(wanted) <= set(client.names)


def test_a_container_that_is_removed_by_hand_is_an_error_that_names_its_node(fake, spec):
    client = fake({("wait", SECOND): NotFound("No such container")})
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        with pytest.raises(EngineError, match="The container of node 1 of gloo-w2-g0-env/tiny is lost"):
            job.wait(ignore)
    assert client.names[-4:] == REMOVED


def test_a_container_that_is_taken_out_of_the_network_is_an_error_that_names_its_node(fake, spec):
    client = fake()
    client.networks_of[SECOND] = ["another"]
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        with pytest.raises(EngineError, match="node 1 of gloo-w2-g0-env/tiny was taken out of the job's network"):
            job.wait(ignore)


def test_how_the_container_of_each_node_ended_is_told(fake, spec):
    client = fake()
    client.states[SECOND] = {"ExitCode": 137, "OOMKilled": True}
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        ending = job.wait(ignore)
    assert ending == JobExit(status=0, followers=(NodeExit(status=137, out_of_memory=True),))


def test_a_node_that_ends_before_the_leader_has_met_it_ends_the_job(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    client.states[SECOND] = {"ExitCode": 1}
    with engine_of(client).start(spec) as job:
        say(client, SECOND)
        assert job.wait(ignore).followers == (NodeExit(status=1),)
    assert ("kill", FIRST) in client.calls


def test_a_paused_node_is_let_go_on_so_that_it_can_end_its_ranks_and_is_killed_where_it_does_not(
    fake, spec, monkeypatch
):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        job.wait(ignore)
    assert [call[:2] for call in client.calls if call[0] in ("unpause", "kill")] == [
        ("unpause", SECOND), ("kill", SECOND),
    ]  # fmt: skip


def test_a_daemon_that_refuses_to_let_a_node_go_on_is_no_error(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake(unpause=refusal(409, "is not paused"))
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        assert job.wait(ignore).status == 0


def test_what_ranks_of_another_node_print_is_passed_on_and_its_journal_is_not(fake, spec):
    client, events = fake(), []
    kinds = [{"event": kind} for kind in ("output", "arrived")]
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET, *kinds)
        say(client, SECOND, *kinds)
        job.wait(events.append)
    assert sorted(event["event"] for event in events) == ["arrived", "nodes_met", "output", "output"]


def results(**files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"results/{name.replace('__', '-')}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def both(fake):
    """A daemon with the results of two nodes."""

    def make(failures=None):
        client = fake(failures)
        client.archives = {
            "/job/results": results(**{"agent.log": "0", "rank-0.log": "0"}),
            "/job/node-1/results": results(**{"agent.log": "1", "rank-1.log": "1"}),
        }
        return client

    return make


EVERYTHING = {"agent.log": "0", "rank-0.log": "0", "agent-1.log": "1", "rank-1.log": "1"}


def collect(client, spec, folder):
    with engine_of(client).start(spec) as job:
        for identifier in (FIRST, SECOND):
            client.wire(identifier).daemon.close()
        job.collect(folder)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_results_of_all_nodes_come_home_into_one_folder(both, spec, tmp_path):
    assert collect(both(), spec, tmp_path) == EVERYTHING


@pytest.mark.parametrize("gone", [FIRST, SECOND])
def test_results_of_a_node_whose_container_is_gone_come_home_all_the_same(both, spec, tmp_path, gone):
    assert collect(both({("get_archive", gone): NotFound("No such container")}), spec, tmp_path) == EVERYTHING


def test_results_that_are_gone_are_an_error_that_keeps_no_others_back(both, spec, tmp_path):
    client = both({("get_archive", "/job/node-1/results"): NotFound("no such path")})
    with pytest.raises(EngineError, match="could not be copied") as error:
        collect(client, spec, tmp_path)
    assert "node-1" in error.value.why
    assert {path.name for path in tmp_path.iterdir()} == {"agent.log", "rank-0.log"}
