"""Finding engines by name: those of allranks, and fake ones of other packages."""

import sys
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest

from allranks import plugin_manager
from allranks.cli.host_checks import check_host
from allranks.engines import docker
from allranks.engines.base import Leftovers
from allranks.engines.process import ProcessEngine
from allranks.engines.registry import choose_engine, engine_class, engine_names, engines_here
from allranks.errors import AllranksError, EngineAbsentError, EngineError, MatrixError, PluginError
from allranks.matrix.declaration import load
from allranks.matrix.jobs import plan
from allranks.runner.machines.planning import PlanOptions, plan_machines


class Far(ProcessEngine):
    name = "far"

    def clean_up(self, *, is_dry_run=False):  # noqa: ARG002
        return Leftovers(["job 7"])


class Absent(Far):
    @classmethod
    def detect(cls, *, is_requested):  # noqa: ARG003
        msg = "This host is not part of it."
        raise EngineAbsentError(msg, why="no such cluster")


OWN = ("docker", "process", "slurm") if find_spec("allranks.plugins") else ("docker", "process")


pytestmark = pytest.mark.usefixtures("no_slurm", "quick_doctor")


@pytest.fixture
def others(plugins_anew, monkeypatch):  # noqa: ARG001
    """Register engines of another package, by name; None stands for one that cannot be imported."""

    def register(**classes):
        module = ModuleType("far_away")
        for name, found in classes.items():
            if found is not None:
                setattr(module, name, found)
        module.allranks_engines = plugin_manager.implements(lambda: {name: f"far_away:{name}" for name in classes})
        monkeypatch.setitem(sys.modules, "far_away", module)
        monkeypatch.setattr(
            "importlib.metadata.entry_points", lambda group: [EntryPoint("far-away", "far_away", group)]
        )
        plugin_manager.load_plugins.cache_clear()

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    return register


def test_own_engines_are_there_without_any_other_package(others):
    others()
    assert engine_names() == OWN
    assert [engine_class(name).name for name in OWN] == list(OWN)


def test_an_engine_of_another_package_is_chosen_by_its_name_alone(others):
    others(far=Far)
    engine, why = choose_engine("far")
    assert (engine.name, why) == ("far", "requested")
    assert choose_engine("auto")[0].name == "process"


def test_an_engine_cannot_take_the_name_of_an_own_one(others):
    others(process=Far)
    with pytest.raises(PluginError, match="adds the engine process, which already exists"):
        engine_names()


def test_an_engine_that_is_not_there_is_an_error_with_those_that_are(others):
    others(far=Far)
    with pytest.raises(EngineError) as raised:
        engine_class("lsf")
    assert raised.value.what == "There is no engine lsf."
    assert raised.value.why == f"The engines are: {', '.join(OWN)}, far."


def test_an_engine_of_a_broken_package_is_an_error_with_its_name(others):
    others(far=None)
    with pytest.raises(EngineError, match=r"The engine far cannot be loaded \(far_away:far\)"):
        choose_engine("far")


def test_an_engine_whose_import_exits_does_not_end_the_run(others, tmp_path, monkeypatch):
    others(leaves=Far)
    engine_names()
    monkeypatch.delitem(sys.modules, "far_away")
    (tmp_path / "far_away.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineError, match="SystemExit: 0"):
        engine_class("leaves")


@pytest.fixture
def closed(others, monkeypatch):
    """A socket that this user may not open, simulated for root."""

    others()

    def refuse(_self, _path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", refuse)


@pytest.mark.usefixtures("closed")
def test_a_daemon_that_this_user_may_not_use_is_an_error_and_no_reason_to_run_without_it():
    with pytest.raises(EngineError, match="This user may not use Docker") as raised:
        choose_engine("auto")
    assert raised.value.exit_code == 4
    assert "/nowhere/docker.sock" in raised.value.why
    assert "--engine process" in raised.value.remedy
    assert choose_engine("process")[0].name == "process"


@pytest.mark.usefixtures("closed", "locks")
def test_the_doctor_reports_the_same(tmp_path):
    [found] = [finding for finding in check_host("auto", "none", tmp_path) if finding.subject == "docker"]
    assert "This user may not use Docker" in found.text
    assert "usermod -aG docker" in found.remedy


def test_a_socket_in_a_closed_folder_is_tried(monkeypatch):
    class Closed:
        def exists(self):
            raise PermissionError(13, "Permission denied")

    def refuse(_self, _path):  # also on a host where Docker runs
        raise PermissionError(13, "Permission denied")

    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(docker, "_SOCKET", Closed())
    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(EngineError) as raised:
        engine_class("docker").detect(is_requested=False)
    assert not isinstance(raised.value, EngineAbsentError)


def test_clean_goes_on_where_an_engine_is_broken_or_not_here(others):
    others(broken=None, far=Far)
    assert [engine.name for engine in engines_here()] == ["process", "far"]
    assert [engine.name for engine in engines_here(exclude="process")] == ["far"]
    others(far=Absent)
    assert [engine.name for engine in engines_here()] == ["process"]


@pytest.mark.parametrize(
    "error", [ValueError("no"), MatrixError("slurm.toml:1: jobs."), EngineError("Gone."), OSError(2)]
)
@pytest.mark.usefixtures("locks")
def test_an_engine_whose_detection_fails_is_skipped_with_a_reason(others, tmp_path, error):
    class Broken(Far):
        @classmethod
        def detect(cls, *, is_requested):  # noqa: ARG003
            raise error

    others(broken=Broken, far=Far)
    assert [engine.name for engine in engines_here()] == ["process", "far"]
    found = {finding.subject: finding for finding in check_host("broken", "none", tmp_path)}
    assert found["broken"].remedy
    with pytest.raises(AllranksError):
        choose_engine("broken")


@pytest.mark.usefixtures("locks")
def test_an_absent_engine_is_a_problem_for_the_doctor_if_it_is_asked_for(others, tmp_path):
    others(far=Absent)
    [found] = [finding for finding in check_host("far", "none", tmp_path) if finding.subject == "far"]
    assert found.text == "This host is not part of it. no such cluster"
    assert found.remedy


def test_no_engine_can_be_called_auto(others):
    others(auto=Far)
    with pytest.raises(PluginError, match="adds the engine auto, which already exists"):
        engine_names()


def test_docker_s_connection_is_closed_with_the_engine():
    calls = []
    client = SimpleNamespace(close=lambda: calls.append("close"))
    docker.DockerEngine(client).close()
    assert calls == ["close"]


@pytest.mark.usefixtures("locks")
def test_the_doctor_reports_a_broken_engine(others, tmp_path):
    others(broken=None)
    found = {finding.subject: finding for finding in check_host("broken", "none", tmp_path)}
    assert "cannot be loaded" in found["broken"].text
    assert found["broken"].remedy


@pytest.mark.usefixtures("locks")
def test_the_doctor_skips_engines_that_no_run_uses_by_default(others, tmp_path):
    others(far=Far)
    [found] = [finding for finding in check_host("auto", "none", tmp_path) if finding.subject == "far"]
    assert found.line == "skipped  far: run allranks doctor --engine far to check it"


MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]

[[runners]]
labels = ["cluster"]
engine = "{engine}"

[suites.unit]
path = "tests"

[images.cpu]
torch = "2.13.0"
"""


def test_a_runner_may_name_it(others, tmp_path):
    others(far=Far)
    (tmp_path / "tests").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX.format(engine="far"))
    assert load(tmp_path).matrix.runners[0].engine == "far"


def test_a_runner_of_an_unknown_engine_is_an_error_at_its_line_when_machines_are_planned(others, tmp_path):
    others(far=Far)
    (tmp_path / "tests").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX.format(engine="fat"))
    expansion = load(tmp_path)
    jobs = plan(expansion.matrix, expansion.cells)
    options = PlanOptions(
        run_id="r", pytest_args=(), durations={}, most=256, minutes=20, plan_file=tmp_path / "plan.json"
    )
    with pytest.raises(MatrixError) as raised:
        plan_machines(expansion, jobs, options)
    assert "matrix.toml:6: runners.engine: 'fat' is not one of 'auto', 'docker', 'process'" in raised.value.what
    assert "'far'" in raised.value.remedy
    assert not (tmp_path / "plan.json").exists()
