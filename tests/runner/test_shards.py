"""Shards of one suite: their requests, caches and durations."""

import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from scripted_engine import BEGUN, FINISHED, PASSED, StandIn

from allranks.engines.base import FileCopy, JobEnvironment, JobExit
from allranks.errors import ExitCode, ResultsError
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.jobs import plan
from allranks.protocol.config import AgentConfig, JobShard
from allranks.protocol.records import Collected, Shared
from allranks.report.merging import merge
from allranks.runner.attempt_runner import AttemptRunner
from allranks.runner.dispatcher import Dispatcher
from allranks.runner.durations import render
from allranks.runner.earlier_runs import initial_cache, keep_cache_of_shard, with_durations
from allranks.runner.host import Host
from allranks.runner.listener import RunListener
from allranks.runner.request import AttemptOptions, job_spec
from allranks.runner.run_jobs import RunOptions, run

pytestmark = pytest.mark.usefixtures("locks")

CELL = "gloo-w1-g0-env"
KNOWN = {"tiny": {"gloo": {"t::a": 1.5}, "nccl": {"t::a": 9.0}}, "other": {"gloo": {"t::b": 2.0}}}


@pytest.fixture(autouse=True)
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def split(repository):
    """The matrix with its suite split in two."""
    path = repository / "matrix.toml"
    path.write_text(path.read_text().replace('path = "suite"', 'path = "suite"\nshards = 2'))
    return load(repository).matrix


@pytest.fixture
def pair(split):
    """Both shards in one cell."""
    return [job for job in plan(split, expand(split).cells) if job.cell.id == CELL]


@pytest.fixture
def file(repository):
    """A file of durations."""
    path = repository / ".allranks-durations.json"
    path.write_text(render(KNOWN))
    return path


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def failed_of(cache):
    return json.loads((cache / "cache" / "lastfailed").read_text())


# the request


def test_a_request_has_the_shard_and_the_durations_of_its_tests(split, pair):
    attempt = AttemptOptions(run_id="r", number=1, seed=1, test_durations={"t::a": 1.5})
    spec = job_spec(split, pair[1], JobEnvironment(image="i"), attempt)
    assert spec.job_id == f"{CELL}/tiny@2of2"
    assert spec.agent.suite == "tiny@2of2"
    assert spec.agent.share == JobShard(number=2, count=2, seconds={"t::a": 1.5})


def test_a_request_for_a_whole_suite_has_no_share(matrix, jobs):
    spec = job_spec(matrix, jobs[CELL], JobEnvironment(image="i"), AttemptOptions(run_id="r", number=1, seed=1))
    assert spec.agent.share is None


def test_an_agent_reads_its_share_from_its_config(split, pair, tmp_path):
    attempt = AttemptOptions(run_id="r", number=1, seed=1, test_durations={"t::a": 1.5})
    agent = job_spec(split, pair[0], JobEnvironment(image="i"), attempt).agent
    (tmp_path / "config.json").write_text(agent.to_json())
    assert AgentConfig.read(tmp_path / "config.json") == agent


def test_a_printed_request_omits_durations(split, pair):
    attempt = AttemptOptions(run_id="r", number=1, seed=1, test_durations={"t::a": 1.5})
    printed = job_spec(split, pair[0], JobEnvironment(image="i"), attempt).to_json()
    assert printed["agent"]["share"] == {"number": 1, "count": 2, "seconds": {}}


# the snapshot of a run


def test_shards_use_the_durations_of_their_suite_and_backend(make_folder, pair, file, lines):
    folder = with_durations(make_folder(pair), pair, file, lines)
    assert folder.seconds_of(pair[0]) == {"t::a": 1.5}
    assert folder.seconds_of(replace(pair[0], cell=replace(pair[0].cell, backend="mpi"))) == {}


def test_all_sessions_of_a_run_use_its_first_durations(make_folder, pair, file, lines):
    with_durations(make_folder(pair), pair, file, lines)
    file.write_text(render({"tiny": {"gloo": {"t::a": 100.0}}}))
    assert with_durations(make_folder(pair), pair, file, lines).seconds_of(pair[1]) == {"t::a": 1.5}


def test_all_shards_start_with_the_same_cache(make_folder, pair):
    folder = make_folder(pair)
    write(folder.cache_of(pair[0]) / "cache/lastfailed", {"t::a": True})
    one = initial_cache(folder, pair[0], 1)
    write(folder.cache_of(pair[0]) / "cache/lastfailed", {})
    assert initial_cache(folder, pair[1], 1) == one
    assert failed_of(one) == {"t::a": True}
    assert failed_of(initial_cache(folder, pair[0], 2)) == {}


def test_no_shard_has_a_cache_if_the_first_one_had_none(make_folder, pair):
    folder = make_folder(pair)
    initial_cache(folder, pair[0], 1)
    write(folder.cache_of(pair[0]) / "cache/lastfailed", {"t::a": True})
    assert list(initial_cache(folder, pair[1], 1).iterdir()) == []


def test_a_whole_suite_needs_no_snapshot(make_folder, jobs, repository, lines):
    (repository / ".allranks-durations.json").write_text("broken")
    folder = make_folder(jobs.values())
    before = sorted(folder.path.iterdir())
    assert with_durations(folder, jobs.values(), repository / ".allranks-durations.json", lines) == folder
    assert initial_cache(folder, jobs[CELL], 1) == folder.cache_of(jobs[CELL])
    assert sorted(folder.path.iterdir()) == before
    assert lines == []


def test_a_broken_file_of_durations_is_reported_and_the_run_continues(make_folder, pair, file, lines):
    file.write_text("<<<<<<< ours")
    folder = with_durations(make_folder(pair), pair, file, lines)
    assert folder.seconds_of(pair[0]) == {}
    assert lines[0].startswith(f"{file} is ignored: it is not a file of durations")


def test_a_broken_snapshot_is_an_error(make_folder, pair, file, lines):
    folder = make_folder(pair)
    (folder.path / "durations.json").write_text("[]")
    with pytest.raises(ResultsError, match="is not a file of durations"):
        with_durations(folder, pair, file, lines)


# pytest's cache


@pytest.fixture
def after_shard(tmp_path):
    """The failures in the suite's cache after a shard, given those now, those at the start, and those of the shard."""

    def keep(states, own):
        now, before, after = states
        for folder, failed in (("cache", now), ("began", before), ("results/pytest-cache/v", after)):
            write(tmp_path / folder / "cache/lastfailed", dict.fromkeys(failed, True))
        keep_cache_of_shard(tmp_path / "results", tmp_path / "cache", tmp_path / "began", own)
        assert not (tmp_path / "results/pytest-cache").exists()
        return set(failed_of(tmp_path / "cache"))

    return keep


@pytest.mark.parametrize(
    ("states", "own", "failed"),
    [
        # a failed test passes in this shard; another shard has fixed one too, and broken one
        ((("t::a", "t::x"), ("t::a", "t::b"), ("t::b",)), {"t::a"}, {"t::x"}),
        # a test fails in this shard
        (((), (), ("t::a",)), {"t::a"}, {"t::a"}),
        # nothing changes in this shard
        ((("t::x",), ("t::b",), ("t::b",)), {"t::a"}, {"t::x"}),
        # a fixed module: pytest caches all its tests as failed, but other shards run some of them
        ((("t.py", "t.py::x"), ("t.py",), ("t.py::a", "t.py::b")), {"t.py::a"}, {"t.py::a", "t.py::x"}),
        # a broken module
        (((), (), ("t.py",)), set(), {"t.py"}),
    ],
)
def test_a_shard_changes_the_failures_of_its_own_tests_only(after_shard, states, own, failed):
    assert after_shard(states, own) == failed


def test_a_shard_without_a_cache_changes_nothing(tmp_path):
    write(tmp_path / "cache/cache/lastfailed", {"t::a": True})
    (tmp_path / "results").mkdir()
    keep_cache_of_shard(tmp_path / "results", tmp_path / "cache", tmp_path / "began", set())
    assert failed_of(tmp_path / "cache") == {"t::a": True}


def test_other_values_of_the_cache_are_kept(tmp_path):
    write(tmp_path / "results/pytest-cache/v/cache/nodeids", ["t::a"])
    keep_cache_of_shard(tmp_path / "results", tmp_path / "cache", tmp_path / "began", set())
    assert json.loads((tmp_path / "cache/cache/nodeids").read_text()) == ["t::a"]


def test_a_symlink_instead_of_lastfailed_is_not_followed(tmp_path):
    write(tmp_path / "secret", {"secret": True})
    (tmp_path / "results/pytest-cache/v/cache").mkdir(parents=True)
    (tmp_path / "results/pytest-cache/v/cache/lastfailed").symlink_to(tmp_path / "secret")
    keep_cache_of_shard(tmp_path / "results", tmp_path / "cache", tmp_path / "began", set())
    assert not (tmp_path / "cache/cache/lastfailed").exists()
    assert json.loads((tmp_path / "secret").read_text()) == {"secret": True}


# whole runs


@dataclass
class SharingEngine(StandIn):
    """An engine whose jobs run one test each, ``t::1`` in the first shard, and leave a cache.

    Attributes:
        carried: The initial files of each job, by its id.
    """

    name: str = "sharing"
    splits: dict = field(default_factory=dict)
    carried: dict = field(default_factory=dict)
    seconds: dict = field(default_factory=dict)

    @contextmanager
    def start(self, spec, _held=()):
        self.carried[spec.job_id] = spec.carried
        self.seconds[spec.job_id] = spec.agent.share.seconds
        yield SharingJob(spec, self.splits.get(spec.agent.share.number, "5eed"))


@dataclass
class SharingJob:
    spec: object
    split: str

    def go(self):
        pass

    @property
    def test(self):
        return f"t::{self.spec.agent.share.number}"

    def wait(self, sink):
        for record in (
            BEGUN,
            Shared(split=self.split, elsewhere=1),
            Collected(tests=(self.test,)),
            replace(PASSED, nodeid=self.test, seconds=(0.75,)),
            FINISHED,
        ):
            sink(0, record)
        return JobExit(status=0)

    def stop(self):
        pass

    def collect(self, results):
        write(results / "pytest-cache/v/cache/lastfailed", {self.test: True})


@pytest.fixture
def engine():
    return SharingEngine()


@pytest.fixture(autouse=True)
def host(engine, monkeypatch):
    host = Host(engine=engine, cores=1, memory=4000, environment_of=lambda _job: JobEnvironment(image="i"))
    monkeypatch.setattr("allranks.runner.run_jobs.choose_host", lambda *_: host)
    return host


@pytest.fixture
def run_pair(split, pair, lines, tmp_path):
    """Runs both shards, or those given, to their report."""

    def go(jobs=None, **changes):
        options = RunOptions(run_id="r1", results=tmp_path / "results", engine="auto", seed=7, pytest_args=())
        return run(expand(split), jobs or pair, replace(options, **changes), lines)

    return go


def test_each_shard_has_its_own_folder_and_records_the_split(run_pair, tmp_path, lines):
    assert run_pair() is ExitCode.OK, lines
    found = {
        path.parents[1].name: json.loads(path.read_text()) for path in tmp_path.glob("results/r1/cells/**/job.json")
    }
    assert {name: record["share"] for name, record in found.items()} == {
        f"tiny@{number}of2": {"suite": "tiny", "number": number, "count": 2, "split": "5eed", "elsewhere": 1}
        for number in (1, 2)
    }
    assert any(line.startswith(f"{CELL}/tiny@1of2: running in") for line in lines)


def test_a_run_of_shards_stores_durations(run_pair, file):
    run_pair()
    assert json.loads(file.read_text())["seconds"]["tiny"]["gloo"] == {"t::1": 0.75, "t::2": 0.75, "t::a": 1.5}


def test_a_run_uses_the_durations_of_an_earlier_run(run_pair, engine):
    run_pair()
    run_pair(run_id="r2")
    assert engine.seconds[f"{CELL}/tiny@2of2"] == {"t::1": 0.75, "t::2": 0.75}


def test_a_broken_file_of_durations_is_not_changed(run_pair, file, lines):
    file.write_text("{")
    assert run_pair() is ExitCode.OK
    assert file.read_text() == "{"
    assert [line.split(": it ")[0] for line in lines if str(file) in line] == [
        f"{file} is ignored",
        f"{file} was not updated with the durations of this run",
    ]


def test_the_cache_of_the_suite_has_the_failures_of_all_shards(run_pair, engine, tmp_path):
    run_pair()
    cache = tmp_path / "results/.cache" / CELL / "tiny"
    assert failed_of(cache) == {"t::1": True, "t::2": True}
    assert engine.carried[f"{CELL}/tiny@2of2"] == ()
    run_pair(run_id="r2")
    assert engine.carried[f"{CELL}/tiny@1of2"] == engine.carried[f"{CELL}/tiny@2of2"]
    [copy] = engine.carried[f"{CELL}/tiny@2of2"]
    source = tmp_path / "results/r2/.caches" / CELL / "tiny/attempt-1"
    assert copy == FileCopy(source=source, target=Path("pytest-cache/v"), root=tmp_path / "results")


def test_shards_that_split_the_suite_differently_are_unaccounted_for(run_pair, engine):
    engine.splits[2] = "0ther"
    assert run_pair() is ExitCode.UNACCOUNTED


def test_a_single_shard_can_run(run_pair, pair, tmp_path):
    assert run_pair([pair[1]]) is ExitCode.OK
    assert [path.name for path in (tmp_path / "results/r1/cells" / CELL).iterdir()] == ["tiny@2of2"]


def test_a_planned_shard_that_did_not_run_is_missing(split, pair, host, make_folder, lines):
    folder = make_folder(pair)
    Dispatcher(AttemptRunner(split, host, folder, RunListener(lines), ())).run(pair[:1])
    absent = merge(folder.path).suites[1]
    assert absent.name == f"{CELL} / tiny@2of2"
    assert "left no results" in absent.failures[0].message
