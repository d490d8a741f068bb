"""Jobs on several nodes: node configurations, collected results, and the process engine's agents on one host."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from allranks.engines import process as engine_process
from allranks.engines import result_files
from allranks.engines.agents import collect_results, gpus_of, reserve_rendezvous, result_name
from allranks.engines.base import JobExit, NodeExit
from allranks.engines.package import package_folder
from allranks.engines.process import ProcessEngine, environment, remove_tree
from allranks.errors import EngineError
from allranks.protocol.config import PYTEST_CACHE, AgentConfig, NodeConfig
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import NodeLost, Notice, Passed, RankEnded

SUITE = """
import os, signal, time
import torch, torch.distributed as dist

def test_reduces(rank):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == 6

def test_ends_on_request(rank):
    end = os.environ["END"]
    if end and rank == 3:
        os.kill(os.getppid(), int(end))
        time.sleep(600)
"""


@pytest.fixture
def rendezvous():
    rendezvous = reserve_rendezvous()
    yield rendezvous
    rendezvous.close()


def test_every_agent_has_its_node_and_all_have_one_port_and_one_token(rendezvous, make_spec):
    agent = make_spec(nodes=2).agent
    posts = [rendezvous.agent_config(agent, node).node_config for node in range(2)]
    assert [post.node for post in posts] == [0, 1]
    assert {(post.leader, post.port, post.token) for post in posts} == {
        (*rendezvous.held.getsockname(), rendezvous.token)
    }


def test_no_two_jobs_have_one_token(rendezvous):
    other = reserve_rendezvous()
    other.close()
    assert other.token != rendezvous.token


def test_only_a_process_that_requests_the_port_by_number_gets_it(rendezvous):
    address = rendezvous.held.getsockname()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(address)
    with socket.socket() as leader:
        leader.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        leader.bind(address)
        leader.listen()


def test_gpus_are_spread_over_nodes():
    assert [gpus_of(node, ("a", "b", "c", "d"), 2) for node in range(2)] == [("a", "b"), ("c", "d")]
    assert [gpus_of(node, ("a", "b", "c"), 2) for node in range(2)] == [("a", "b"), ("c",)]
    assert [gpus_of(node, (), 2) for node in range(2)] == [(), ()]


def test_each_node_sees_its_own_gpus(make_spec, tmp_path):
    post = NodeConfig(node=1, leader="127.0.0.1", port=1, token="t")  # noqa: S106 - no secret
    spec = make_spec(gpus=("a", "b"), nodes=2, node_config=post)
    assert environment(spec, tmp_path, tmp_path, {})["CUDA_VISIBLE_DEVICES"] == "b"


def test_the_token_is_in_no_record(make_spec):
    post = NodeConfig(node=1, leader="127.0.0.1", port=1, token="very-secret")  # noqa: S106 - no secret
    spec = make_spec(nodes=2, node_config=post)
    assert "very-secret" not in json.dumps(spec.to_json()) + repr(spec)
    assert spec.to_json()["agent"]["nodes"] == 2
    assert "very-secret" in spec.agent.to_json()


def test_a_config_with_a_post_reads_back(rendezvous, make_spec, tmp_path):
    config = rendezvous.agent_config(make_spec(nodes=2).agent, 1)
    (tmp_path / "config.json").write_text(config.to_json())
    assert AgentConfig.read(tmp_path / "config.json") == config


@pytest.fixture
def folders(tmp_path):
    """The results of two agents, and the target folder."""

    def make(*contents):
        sources = [tmp_path / f"node-{node}" for node in range(len(contents))]
        for source, files in zip(sources, contents, strict=True):
            for name, text in files.items():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                (source / name).write_text(text)
        home = tmp_path / "home"
        home.mkdir()
        return sources, home

    return make


def content(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_files_of_agents_get_their_nodes_number_and_those_of_ranks_keep_their_names(folders):
    sources, home = folders(
        {"agent.log": "0", "events-agent.jsonl": "0", "rank-0.log": "0"},
        {"agent.log": "1", "events-agent.jsonl": "1", "rank-1.log": "1", "deep/er": "1"},
    )
    collect_results(sources, home)
    assert content(home) == {
        "agent.log": "0", "events-agent.jsonl": "0", "rank-0.log": "0",
        "agent-1.log": "1", "events-agent-1.jsonl": "1", "rank-1.log": "1", "deep/er": "1",
    }  # fmt: skip


def test_a_followers_pytest_cache_stays_behind(folders):
    sources, home = folders({f"{PYTEST_CACHE}/v": "0"}, {f"{PYTEST_CACHE}/v": "1"})
    collect_results(sources, home)
    assert content(home) == {f"{PYTEST_CACHE}/v": "0"}


@pytest.mark.parametrize("missing", [0, 1])
def test_a_folder_that_is_gone_is_an_error_and_keeps_nothing_else_back(folders, missing):
    sources, home = folders({"agent.log": "0"}, {"agent.log": "1"})
    shutil.rmtree(sources[missing])
    with pytest.raises(OSError, match=f"node-{missing}"):
        collect_results(sources, home)
    assert list(content(home)) == [["agent-1.log"], ["agent.log"]][missing]


def test_only_an_agents_own_files_are_renamed():
    assert result_name(Path("rank-1.log"), 1) == Path("rank-1.log")
    assert result_name(Path("of-mine/agent"), 1) == Path("of-mine/agent")


def test_links_are_not_followed_and_what_would_block_is_not_opened(folders, tmp_path):
    [source], home = folders({"agent.log": "0", "sub/kept": "1"})
    (tmp_path / "secret").write_text("secret")
    for name, target in {"file": tmp_path / "secret", "folder": tmp_path, "zero": "/dev/zero", "self": "self"}.items():
        (source / name).symlink_to(target)
    os.mkfifo(source / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        collect_results([source], home)
    assert content(home) == {"agent.log": "0", "sub/kept": "1"}


def test_a_results_folder_that_became_a_link_is_none(folders, tmp_path):
    [source], home = folders({"agent.log": "0"})
    source.rename(tmp_path / "elsewhere")
    source.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="not a folder"):
        collect_results([source], home)
    assert content(home) == {}


def test_a_file_that_becomes_a_pipe_while_it_is_copied_is_left_alone(folders, monkeypatch):
    [source], home = folders({"a": "0", "b": "1"})
    real = os.open

    def swap(path, *arguments):
        if Path(path) == source / "a":
            (source / "a").unlink()
            os.mkfifo(source / "a")
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", swap)
    collect_results([source], home)
    assert content(home) == {"b": "1"}


def test_a_file_that_grows_while_it_is_copied_is_copied_up_to_what_it_had(folders, monkeypatch):
    [source], home = folders({"log": "12345"})
    real = os.fstat

    def grow(descriptor):
        found = real(descriptor)
        with (source / "log").open("a") as log:
            log.write("6" * (1 << 20))
        return found

    monkeypatch.setattr(os, "fstat", grow)
    collect_results([source], home)
    assert content(home) == {"log": "12345"}


def test_a_sparse_file_counts_by_its_length_and_what_fits_is_there(folders):
    [source], home = folders({"agent.log": "0", "zzz": "1"})
    with (source / "big").open("wb") as big:
        big.truncate(3 << 40)
    with pytest.raises(EngineError, match=r"exceed the limit of 512 MiB\. Left out: 'big' \(3,072 GiB\)"):
        collect_results([source], home)
    assert content(home) == {"agent.log": "0", "zzz": "1"}


def test_the_limit_is_one_for_all_nodes(folders):
    sources, home = folders({"rank-0.log": "0" * 60}, {"rank-1.log": "1" * 60, "tiny": "1"})
    with pytest.raises(EngineError, match=r"exceed the limit of 100 bytes\. Left out: 'rank-1\.log'"):
        collect_results(sources, home, 50)
    assert content(home) == {"rank-0.log": "0" * 60, "tiny": "1"}


def test_folders_are_entered_to_a_limit_and_deeper_ones_are_reported(folders):
    [source], home = folders({"agent.log": "0", f"{'d/' * 32}file": "1"})
    deep = source.joinpath(*("e" * 34))
    deep.mkdir(parents=True)
    with pytest.raises(EngineError, match="or 32 folders"):
        collect_results([source], home)
    assert content(home) == {"agent.log": "0", f"{'d/' * 32}file": "1"}


def test_folders_deeper_than_any_path_end_nothing(folders, monkeypatch):
    [source], home = folders({"agent.log": "0"})
    monkeypatch.chdir(source)
    for _ in range(1500):
        os.mkdir("deep")  # noqa: PTH102 - no path is that long
        os.chdir("deep")
    try:
        with pytest.raises(EngineError, match="or 32 folders"):
            collect_results([source], home)
    finally:
        remove_tree(source)
    assert not source.exists()
    assert content(home) == {"agent.log": "0"}


def test_files_are_counted_and_those_over_the_limit_are_reported(folders, monkeypatch):
    monkeypatch.setattr(result_files, "MOST_ENTRIES", 3)
    [source], home = folders({name: name for name in "abcdef"})
    with pytest.raises(EngineError, match="more than 3 files and folders"):
        collect_results([source], home)
    assert content(home) == {name: name for name in "abc"}


@pytest.mark.parametrize("name", ["job.json", "journal.jsonl", ".latest", ".x/y", "sub/.allranks.part"])
def test_names_that_the_host_writes_itself_never_come_from_a_job(folders, name):
    [source], home = folders({name: "forged", "sub/job.json": "kept"})
    (home / "job.json").write_text("own")
    with pytest.raises(EngineError, match=rf"allranks reserves for itself\. Left out: '{name.removesuffix('/y')}' "):
        collect_results([source], home)
    assert content(home) == {"job.json": "own", "sub/job.json": "kept"}


@pytest.fixture
def run_job(make_spec, tmp_path):
    """Run a job on two nodes with real agents; return its exit, records and results."""

    def run(end=""):
        code, package, results = tmp_path / "code", tmp_path / "package", tmp_path / "results"
        (code / "suite").mkdir(parents=True)
        (code / "suite" / "test_it.py").write_text(SUITE)
        package.mkdir()
        (package / "allranks").symlink_to(package_folder())
        results.mkdir()
        spec = make_spec(code=code, python=sys.executable, world_size=4, nodes=2, environment={"END": end})
        records = []
        with ProcessEngine(package).start(spec) as job:
            job.go()
            ending = job.wait(lambda _node, record: records.append(record))
            job.collect(results)
        return ending, records, results

    return run


def ends(records):
    """The outcome of each rank in the records."""
    passed = {(rank, Outcome.PASSED) for record in records if isinstance(record, Passed) for rank in record.ranks}
    return passed | {(record.rank, record.outcome) for record in records if isinstance(record, RankEnded)}


@pytest.mark.thorough
def test_a_job_of_two_nodes_runs_from_start_to_results(run_job, left_of, run_id):
    ending, records, results = run_job()
    assert ending == JobExit(status=0, followers=(NodeExit(status=0),))
    assert ends(records) == {(rank, Outcome.PASSED) for rank in range(4)}
    assert {"agent.log", "agent-1.log"} <= {path.name for path in results.iterdir()}
    assert not [name for name in left_of(run_id) if name.startswith("process")]


@pytest.mark.thorough
def test_a_killed_agent_is_reported_and_nothing_is_left(run_job, left_of, run_id):
    ending, records, _ = run_job(str(int(signal.SIGKILL)))
    assert ending.status == 1
    [lost] = [record for record in records if isinstance(record, NodeLost)]
    assert lost.message == "The agent of node 1 is gone."
    assert ending.followers == (NodeExit(status=-signal.SIGKILL),)
    lost = [record for record in records if isinstance(record, RankEnded) and record.rank == 3]
    assert lost[0].message == "rank 3 is lost: the agent of node 1 is gone"
    assert lost[0].is_lost
    assert not [name for name in left_of(run_id) if name.startswith("process")]


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine with a fake agent program, which gets its node."""

    def make(program):
        script = tmp_path / "agent.py"
        script.write_text(f"import json, os, sys\nconfig, folder = sys.argv[1:]\n{program}")
        monkeypatch.setattr(
            engine_process,
            "command",
            lambda python, _package, _code, own, _shared: [python, str(script), str(own / "config.json"), str(own)],
        )
        return ProcessEngine(tmp_path)

    return make


NEVER = time.monotonic() + 3600


def ignore(_node, _said):
    pass


NODE = "node = json.load(open(config))['node_config']['node']\n"
WAITS = "sys.stdin.read(); sys.exit(130)\n"


@pytest.fixture
def spec(make_spec, tmp_path):
    return make_spec(python=sys.executable, code=tmp_path, nodes=2)


def test_an_agent_that_ends_before_the_leader_has_met_it_ends_the_job(engine, spec):
    with engine(NODE + f"if node: sys.exit('cannot start')\n{WAITS}").start(spec) as job:
        job.go()
        ending = job.wait(ignore)
    assert (ending.status, ending.timed_out) == (130, False)
    assert ending.followers == (NodeExit(status=1, output="cannot start"),)


def test_an_agent_that_ends_after_the_leader_has_met_it_is_the_leaders_business(engine, spec):
    leader = (
        "print('\\x1e' + json.dumps(['NodesMet', {'nodes': [1]}]), flush=True)\nsys.stdin.readline(); sys.exit(7)\n"
    )
    with engine(NODE + f"if not node:\n {leader.replace(chr(10), chr(10) + ' ')}").start(spec) as job:
        job._read_until(lambda: job._are_connected and job._followers[0].has_ended, lambda: NEVER, ignore)
        job.go()
        assert job.wait(ignore).status == 7


def test_a_config_file_can_be_read_by_its_owner_alone(engine, spec):
    program = "print(oct(os.stat(config).st_mode & 0o777), flush=True)\n"
    with engine(NODE + program + WAITS).start(spec) as job:
        job.stop()
        assert [agent.stream.output for agent in job._agents] == ["0o600", "0o600"]


def test_records_come_with_the_node_that_they_are_of(engine, spec):
    says = "print('\\x1e' + json.dumps(['Notice', {'text': str(node)}]), flush=True)\n"
    with engine(NODE + says).start(spec) as job:
        records = []
        job._read_until(
            lambda: all(agent.has_ended for agent in job._agents), lambda: NEVER, lambda *record: records.append(record)
        )
    assert sorted(records) == [(0, Notice(text="0")), (1, Notice(text="1"))]


def test_a_stopped_follower_is_let_go_on_so_that_it_can_end_its_ranks(engine, spec):
    program = f"if node: os.kill(os.getpid(), {int(signal.SIGSTOP)}); open(folder + '/went on', 'w')\n"
    with engine(NODE + program + WAITS).start(spec) as job:
        os.waitid(os.P_PID, job._followers[0].process.pid, os.WSTOPPED)
        job.stop()
        assert (job._followers[0].folder / "went on").exists()
