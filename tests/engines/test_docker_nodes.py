"""Jobs on several nodes on the docker engine, with a fake daemon."""

import io
import tarfile
import tempfile
import threading
from contextlib import suppress

import fake_daemon
import pytest
import requests
from docker.errors import NotFound
from fake_daemon import ID, end_agent, engine_of, ignore, refusal

from allranks.engines import agents, docker_job
from allranks.engines.base import JobExit, NodeExit
from allranks.engines.docker_requests import container_name, network_of, specs_of_nodes, volume_names
from allranks.errors import EngineError
from allranks.protocol.records import NodesMet, Notice

FIRST, SECOND = ID, f"{ID}-1"
REMOVED = ["remove", "remove", "remove_volume", "remove_volume", "remove_network"]


@pytest.fixture
def spec(make_spec):
    return make_spec(image="allranks/cpu:1", run_id="r", nodes=2)


def say(client, identifier, *records, status=0):
    """Make an agent send records, and end."""
    for record in records:
        fake_daemon.say(client, record, identifier)
    end_agent(client, identifier, status=status)


MET = NodesMet(nodes=(1,))


def test_the_network_is_made_first_and_removed_last_and_every_node_is_attached_before_it_starts(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        assert job.wait(ignore) == JobExit(status=0, followers=(NodeExit(status=0),))
    starts = ["attach", "start"] * 2
    assert client.names[:8] == ["create_network", "create", "create", *starts, "put_archive"]
    assert [call[1] for call in client.calls if call[0] == "start"] == [FIRST, SECOND]
    assert client.names[-5:] == REMOVED
    files, shared = volume_names(spec)
    volumes = [("remove_volume", shared), ("remove_volume", files)]
    assert client.calls[-3:] == [*volumes, ("remove_network", "net")]


def test_no_agent_begins_before_its_files_are_there(fake, spec):
    client = fake()
    put_archive, responses = client.put_archive, []

    def look(*arguments):
        for identifier in (FIRST, SECOND):
            client.wire(identifier).daemon.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.wire(identifier).daemon.recv(10)
        responses.append(put_archive(*arguments))

    client.put_archive = look
    with engine_of(client).start(spec):
        assert len(responses) == 1
        for identifier in (FIRST, SECOND):
            assert client.wire(identifier).daemon.recv(10) == b"begin\n"
            end_agent(client, identifier)


def test_one_node_needs_no_network(fake, make_spec):
    client = fake()
    with engine_of(client).start(make_spec(image="i")):
        client.daemon.close()
    assert not [name for name in client.names if "network" in name]


def test_a_network_that_cannot_be_made_leaves_nothing(fake, spec):
    client = fake(create_network=refusal(500, "no such driver"))
    with pytest.raises(EngineError, match="The network of gloo-w2-g0-env/tiny could not be created") as error:
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
def test_a_daemon_without_addresses_is_an_error_with_a_remedy(fake, spec, text):
    with pytest.raises(EngineError, match="network") as error:
        engine_of(fake(create_network=refusal(404, text))).start(spec).__enter__()
    assert "docker network prune" in error.value.remedy


def test_what_the_daemon_may_have_made_without_answering_is_removed_by_its_name(fake, spec):
    client = fake(create_network=requests.ReadTimeout("60 s"))
    with pytest.raises(EngineError, match="network"):
        engine_of(client).start(spec).__enter__()
    assert client.calls[-1] == ("remove_network", network_of(spec))

    client = fake({("create", SECOND): requests.ReadTimeout("60 s")})
    with pytest.raises(EngineError, match="node 1"):
        engine_of(client).start(spec).__enter__()
    assert [call[1] for call in client.calls if call[0] == "remove"] == [
        container_name(specs_of_nodes(spec, "token")[1]),
        FIRST,
    ]


def test_an_existing_container_with_the_name_is_not_removed(fake, spec):
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
    made = [FIRST] if step == "create" else [SECOND, FIRST]
    assert [call[1] for call in client.calls if call[0] == "remove"] == made
    assert client.names[-3 - len(made) :] == ["remove"] * len(made) + REMOVED[2:]


@pytest.mark.parametrize("step", ["create_network", "create", "put_archive", "attach", "start"])
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
    undone = {"create": "remove", "create_network": "remove_network"}
    made = [name for name in client.names if name in undone and name != step]
    assert {undone[name] for name in made} <= set(client.names)
    assert step == "create_network" or client.names[-3:] == REMOVED[2:]


def test_a_container_that_is_being_removed_was_not_only_killed(fake, spec):
    client = fake()
    client.states[SECOND] = {"Status": "removing", "ExitCode": 137}
    client.networks_of[SECOND] = []
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        with pytest.raises(EngineError, match="node 1 of gloo-w2-g0-env/tiny was removed while"):
            job.wait(ignore)


def test_a_container_that_is_removed_by_hand_is_an_error_that_names_its_node(fake, spec):
    client = fake({("inspect", SECOND): NotFound("No such container")})
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        with pytest.raises(
            EngineError,
            match="The container of node 1 of gloo-w2-g0-env/tiny was removed while the job ran",
        ):
            job.wait(ignore)
    assert client.names[-5:] == REMOVED


def test_a_container_that_is_taken_out_of_the_network_is_an_error_that_names_its_node(fake, spec):
    client = fake()
    client.networks_of[SECOND] = ["another"]
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        with pytest.raises(EngineError, match="node 1 of gloo-w2-g0-env/tiny was disconnected from the job's network"):
            job.wait(ignore)


def test_nodes_whose_network_is_removed_early_do_not_wait_for_each_other(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    client.networks_of[SECOND] = []
    with engine_of(client).start(spec) as job:
        job.go()
        with pytest.raises(EngineError, match="node 1 of gloo-w2-g0-env/tiny was disconnected from the job's network"):
            job.wait(ignore)
    assert client.names[-5:] == REMOVED


def test_a_daemon_that_cannot_say_whether_nodes_have_a_network_ends_no_job(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.01)
    monkeypatch.setattr(docker_job, "_NETWORK_POLL", 0.0)
    client = fake({("inspect", FIRST): refusal(500, "busy")})
    with engine_of(client).start(spec) as job:
        threading.Timer(0.2, lambda: (say(client, SECOND), say(client, FIRST, MET))).start()
        with suppress(EngineError):  # it is asked again for how they ended
            job.wait(ignore)
    assert ("kill", FIRST) not in client.calls


def test_the_exit_of_each_nodes_agent_is_reported(fake, spec):
    client = fake()
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        end_agent(client, SECOND, status=-9, memory_kills=1)
        ending = job.wait(ignore)
    assert ending == JobExit(status=0, followers=(NodeExit(status=-9, out_of_memory=True),))


def test_a_killed_container_is_reported_with_its_status(fake, spec):
    client = fake()
    client.states[SECOND] = {"ExitCode": 137, "OOMKilled": True}
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        client.wire(SECOND).daemon.close()
        assert job.wait(ignore).followers == (NodeExit(status=137, out_of_memory=True),)


def test_a_node_that_ends_before_the_leader_has_met_it_ends_the_job(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    with engine_of(client).start(spec) as job:
        say(client, SECOND, status=1)
        assert job.wait(ignore).followers == (NodeExit(status=1),)
    assert ("kill", FIRST) in client.calls


def test_a_paused_node_is_let_go_on_so_that_it_can_end_its_ranks_and_is_killed_where_it_does_not(
    fake, spec, monkeypatch
):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake()
    client.states[SECOND] = {"Paused": True, "Running": True}
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        job.wait(ignore)
    assert [call[:2] for call in client.calls if call[0] in ("unpause", "kill")] == [
        ("unpause", SECOND), ("kill", SECOND),
    ]  # fmt: skip


def test_a_daemon_that_refuses_to_let_a_node_go_on_is_no_error(fake, spec, monkeypatch):
    monkeypatch.setattr(agents, "STOP_GRACE", 0.05)
    client = fake(unpause=refusal(500, "cannot thaw"))
    client.states[SECOND] = {"Paused": True, "Running": True}
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        assert job.wait(ignore).status == 0


def test_a_node_that_was_paused_and_ends_normally_is_reported(fake, spec):
    client = fake()
    client.states[SECOND] = {"Paused": True, "Running": True}
    client.unpause = lambda identifier: end_agent(client, identifier)
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        assert job.wait(ignore).followers == (NodeExit(status=0, output="It had been paused."),)


def test_a_network_is_removed_even_if_another_container_is_connected(fake, spec):
    client = fake(disconnect=NotFound("it is gone"))
    client.strangers = ["stranger"]
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET)
        say(client, SECOND)
        job.wait(ignore)
    assert client.calls[-2:] == [("disconnect", "stranger", "net", True), ("remove_network", "net")]


def test_records_come_with_the_node_that_they_are_of(fake, spec):
    client, records = fake(), []
    with engine_of(client).start(spec) as job:
        say(client, FIRST, MET, Notice(text="leads"))
        say(client, SECOND, Notice(text="follows"))
        job.wait(lambda *record: records.append(record))
    assert sorted(records, key=str) == [(0, MET), (0, Notice(text="leads")), (1, Notice(text="follows"))]


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
    """A fake daemon with the results of two nodes."""

    def make(failures=None):
        client = fake(failures)
        client.archives = {
            "/job/results": results(**{"agent.log": "0", "rank-0.log": "0"}),
            "/job/node-1/results": results(**{"agent.log": "1", "rank-1.log": "1"}),
        }
        return client

    return make


EVERYTHING = {"agent.log": "0", "rank-0.log": "0", "agent-1.log": "1", "rank-1.log": "1"}


@pytest.fixture
def collect(spec, tmp_path):
    """Run a job in which the agents of some nodes and the containers of others end; return the collected results."""

    def run(client, *ends):
        with engine_of(client).start(spec) as job:
            for identifier in (FIRST, SECOND):
                if identifier in ends:
                    end_agent(client, identifier)
                else:
                    client.wire(identifier).daemon.close()
            job.wait(ignore)
            job.collect(tmp_path)

    return run


def home(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_results_of_all_nodes_come_home_into_one_folder(both, collect, tmp_path):
    collect(both(), FIRST, SECOND)
    assert home(tmp_path) == EVERYTHING


@pytest.mark.parametrize(("node", "alive"), [(0, SECOND), (1, FIRST)])
def test_results_of_a_node_without_a_container_are_collected_with_an_error(both, collect, tmp_path, node, alive):
    client = both()
    with pytest.raises(EngineError, match=rf"The container of node {node} of .* ended unexpectedly\.") as error:
        collect(client, alive)
    assert "Its exit status is 0." in error.value.why
    assert home(tmp_path) == EVERYTHING
    assert {call[1] for call in client.calls if call[0] == "get_archive"} == {alive}


def test_results_of_nodes_come_home_without_temporary_files_which_would_outlive_a_kill(
    both, collect, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    collect(both(), FIRST, SECOND)
    assert home(tmp_path) == EVERYTHING


def test_results_that_one_container_does_not_give_another_one_gives(both, collect, tmp_path):
    collect(both({("get_archive", SECOND): NotFound("No such container")}), FIRST, SECOND)
    assert home(tmp_path) == EVERYTHING


def test_results_are_lost_if_all_containers_have_ended(both, collect, tmp_path):
    with pytest.raises(EngineError, match=r"The container of node 0 of .* ended unexpectedly, and its files are lost"):
        collect(both())
    assert home(tmp_path) == {}


def test_results_that_are_gone_are_an_error_that_keeps_no_others_back(both, collect, tmp_path):
    client = both({("get_archive", "/job/node-1/results"): NotFound("no such path")})
    with pytest.raises(EngineError, match="could not be copied") as error:
        collect(client, FIRST, SECOND)
    assert "node-1" in error.value.why
    assert set(home(tmp_path)) == {"agent.log", "rank-0.log"}
