"""The tests that every engine has to pass: copy this file to your own tests, and import :class:`EngineContract`.

::

    pytest.register_assert_rewrite("engine_contract")  # in conftest.py, so that failures show the difference

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def engine(self):
            return MyEngine(...)

        @pytest.fixture
        def environment(self):
            return JobEnvironment(python=sys.executable)  # one that has torch and pytest
"""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from allranks.engines.base import Engine, FileCopy, JobEnvironment, JobSpec, resources
from allranks.errors import EngineError
from allranks.ownership import own_run
from allranks.protocol.config import AgentConfig, TimeLimits
from allranks.protocol.records import (
    Begun,
    Collected,
    Finished,
    GangReady,
    Imported,
    Interrupted,
    Passed,
    RankEnded,
    Record,
    Went,
)

SUITE: Final = """
import os
from pathlib import Path

import pytest
import torch.distributed as dist

HERE = Path(__file__).parent


def test_variables_reach_every_rank():
    assert os.environ["COLOUR"] == "blue"
    assert os.environ["RANK"] == str(dist.get_rank())


def test_files_beside_the_tests_are_there():
    assert (HERE / "data.txt").read_text() == "data"
    assert (HERE.parent / "shared.txt").read_text() == "shared"


def test_that_fails_on_one_rank():
    assert dist.get_rank() == 0


def test_ranks_can_write_to_their_temporary_folder(tmp_path):
    (tmp_path / "x").write_text("x")
"""

ENDLESS: Final = """
import signal


def test_that_ends():
    pass


def test_that_never_ends():
    signal.pause()
"""

GREEDY: Final = """
import os
from pathlib import Path

HERE = Path("../results")


def test_that_leaves_too_much(rank):
    if rank == 0:
        with (HERE / "zz-big").open("wb") as big:
            big.truncate(8 << 30)
        (HERE / "job.json").write_text("{}")
        (HERE / "link").symlink_to("/etc/passwd")
        os.mkfifo(HERE / "pipe")
"""

TESTS: Final = "test_tiny.py"
"""The file of the tests, in the folder ``suite`` of the spec's code."""


class Heard(list[object]):
    """A sink that collects what agents send."""

    def __call__(self, _node: int, record: object) -> None:
        """Collect a record."""
        self.append(record)

    def first(self, kind: type[Record]) -> Record | None:
        """The first record of a type."""
        return next((record for record in self if isinstance(record, kind)), None)

    @property
    def ends(self) -> dict[tuple[str, int], str]:
        """The outcome of each rank in each test, by test name and rank."""
        found: dict[tuple[str, int], str] = {}
        for record in self:
            if isinstance(record, Passed):
                found.update({(_name(record.nodeid), rank): "passed" for rank in record.ranks})
            elif isinstance(record, RankEnded):
                found[_name(record.nodeid), record.rank] = record.outcome.value
        return found


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


class HeardOnce(Heard):
    """Calls a function at the first outcome."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self._has_acted = False

    def __call__(self, node: int, record: object) -> None:
        """Collect a record, and call the function."""
        super().__call__(node, record)
        if isinstance(record, Passed | RankEnded) and len(self.ends) == 2 and not self._has_acted:
            self._has_acted = True
            self._act()


ENDED: Final = {("test_that_ends", rank): "passed" for rank in (0, 1)}
"""The passed outcomes of the endless suite if its second test is aborted."""


def job_of_two_ranks(run_id: str, code: Path) -> JobSpec:
    """A job over gloo, without an environment and without files."""
    agent = AgentConfig(
        cell="gloo-w2-g0-env",
        suite="tiny",
        paths=("suite",),
        backend="gloo",
        world_size=2,
        gpu_count=0,
        init_method="env",
        isolation="job",
        limits=TimeLimits(process_group=20, test=15, job=60, peer_grace=1),
        seed=1,
    )
    return JobSpec(
        run_id=run_id,
        job_id="gloo-w2-g0-env/tiny",
        attempt=1,
        agent=agent,
        code=code,
        resources=resources(world_size=2, memory_mib=None, seconds=60),
    )


def with_small_suite(spec: JobSpec) -> JobSpec:
    """Write the small suite to the job's code folder; return the job with its files and variables."""
    (spec.code / "suite").mkdir(parents=True, exist_ok=True)
    (spec.code / "suite" / TESTS).write_text(SUITE)
    (spec.code / "suite" / "data.txt").write_text("data")
    (spec.code / "shared.txt").write_text("shared")
    files = tuple(FileCopy(source=spec.code / name, target=Path(name)) for name in ("suite", "shared.txt"))
    return replace(spec, files=files, environment={"COLOUR": "blue"})


class EngineContract:
    """Jobs of two ranks over gloo; subclasses have the fixtures ``engine`` and ``environment``."""

    @pytest.fixture
    def spec(self, tmp_path: Path, environment: JobEnvironment) -> Iterator[JobSpec]:
        """A job of the small suite, in a run that this process owns."""
        run_id = f"contract-{uuid.uuid4().hex[:10]}"
        with own_run(run_id):
            yield replace(
                job_of_two_ranks(run_id, tmp_path / "code"),
                image=environment.image,
                python=environment.python,
                python_path=environment.python_path,
            )

    @pytest.fixture
    def tiny(self, spec: JobSpec) -> JobSpec:
        """The job with its files."""
        return with_small_suite(spec)

    @pytest.fixture
    def endless(self, tiny: JobSpec) -> JobSpec:
        """A job whose second test never ends."""
        (tiny.code / "suite" / TESTS).write_text(ENDLESS)
        return tiny

    @pytest.fixture
    def results(self, tmp_path: Path) -> Path:
        """An empty folder."""
        folder = tmp_path / "results"
        folder.mkdir()
        return folder

    def test_a_job_runs_from_start_to_results(self, engine: Engine, tiny: JobSpec, results: Path) -> None:
        """All records arrive in order, followed by the job's files."""
        heard = Heard()
        with engine.start(tiny) as job:
            job.go()
            ending = job.wait(heard)
            job.collect(results)
        assert (ending.status, ending.timed_out, ending.out_of_memory) == (0, False, False)
        order = [Begun, Imported, Collected, Went, GangReady, Passed, Finished]
        assert [kind for kind in dict.fromkeys(map(type, heard)) if kind in order] == order
        assert isinstance(heard[-1], Finished)
        assert heard[-1].status == 0
        failed = {key for key, outcome in heard.ends.items() if outcome != "passed"}
        assert failed == {("test_that_fails_on_one_rank", 1)}
        assert len(heard.ends) == 8
        assert "agent.log" in {path.name for path in results.iterdir()}

    def test_of_results_too_large_or_with_names_of_the_hosts_all_else_is_there(
        self, engine: Engine, tiny: JobSpec, results: Path
    ) -> None:
        """A job's results can neither fill the host's disk nor replace files of allranks."""
        (tiny.code / "suite" / TESTS).write_text(GREEDY)
        heard = Heard()
        with engine.start(tiny) as job:
            job.go()
            job.wait(heard)
            with pytest.raises(EngineError) as raised:
                job.collect(results)
        assert set(heard.ends.values()) == {"passed"}
        assert "The job's results exceed the limit of 512 MiB. Left out: 'zz-big' (8,192 MiB)." in raised.value.text
        assert "names that allranks reserves for itself. Left out: 'job.json' (2 bytes)." in raised.value.text
        names = {path.name for path in results.iterdir()}
        assert "agent.log" in names
        assert names.isdisjoint({"zz-big", "job.json", "link", "pipe"})

    def test_a_job_starts_with_what_it_carries_among_its_results(
        self, engine: Engine, tiny: JobSpec, results: Path, tmp_path: Path
    ) -> None:
        """``--lf`` needs it in the next run."""
        failed = "suite/test_tiny.py::test_that_fails_on_one_rank"
        (tmp_path / "cache" / "cache").mkdir(parents=True)
        (tmp_path / "cache" / "cache" / "lastfailed").write_text(json.dumps({failed: True}))
        carried = (FileCopy(source=tmp_path / "cache", target=Path("pytest-cache/v")),)
        heard = Heard()
        with engine.start(replace(tiny, carried=carried, agent=replace(tiny.agent, pytest_args=("--lf",)))) as job:
            job.go()
            job.wait(heard)
            job.collect(results)
        collected = heard.first(Collected)
        assert isinstance(collected, Collected)
        assert collected.tests == (failed,)
        assert failed in (results / "pytest-cache" / "v" / "cache" / "lastfailed").read_text()

    def test_a_job_stopped_in_the_middle_leaves_its_files(
        self, engine: Engine, endless: JobSpec, results: Path
    ) -> None:
        """As with Ctrl-C."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        with engine.start(endless) as job:
            job.go()
            with suppress(KeyboardInterrupt):
                job.wait(HeardOnce(interrupt))
            job.stop()
            job.collect(results)
        assert (results / "agent.log").exists()

    def test_a_job_told_to_end_while_somebody_waits_for_it_ends_soon(self, engine: Engine, endless: JobSpec) -> None:
        """Its earlier records are kept."""
        with engine.start(endless) as job:
            heard = HeardOnce(lambda: threading.Thread(target=job.request_stop).start())
            job.go()
            assert not job.wait(heard).timed_out
        assert heard.first(Interrupted)
        assert {key: outcome for key, outcome in heard.ends.items() if outcome == "passed"} == ENDED
        assert {key[0] for key in heard.ends.keys() - ENDED.keys()} == {"test_that_never_ends"}

    def test_leaving_a_job_that_was_never_let_go_ends_it(self, engine: Engine, tiny: JobSpec) -> None:
        """It has only collected tests."""
        with engine.start(tiny):
            pass
        assert not engine.clean_up(is_dry_run=True).dead

    def test_the_engines_time_limit_ends_a_job(self, engine: Engine, tiny: JobSpec) -> None:
        """Even if its agent misbehaves."""
        with engine.start(replace(tiny, resources=replace(tiny.resources, seconds=0.5))) as job:
            assert job.wait(Heard()).timed_out
