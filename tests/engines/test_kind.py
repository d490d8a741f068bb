"""Engines by name: allranks' own, and those of other packages, which are stand-ins here."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pytest

from allranks import engine_registry
from allranks.cli.host_checks import examine
from allranks.engines import containers
from allranks.engines.kind import choose_engine, cleaners, engine_kind
from allranks.engines.process import ProcessEngine
from allranks.errors import EngineError, MatrixError
from allranks.matrix.declaration import load


class FarKind:
    name = "far"
    lacks = ""

    def why_not(self):
        return self.lacks

    def connect(self):
        engine = SimpleNamespace(name="far", reap=lambda: ["job 7"])
        return SimpleNamespace(name="far", answer="", most_jobs=lambda: None, image_daemon=None, cleaner=lambda: engine)


OWN = ("docker", "process", "slurm")


pytestmark = pytest.mark.usefixtures("no_slurm")


@pytest.fixture
def others(monkeypatch):
    """Register engines of other packages: what is there by its name, None for one that cannot be imported."""

    def register(**kinds):
        module = ModuleType("far_away")
        for name, kind in kinds.items():
            if kind is not None:
                setattr(module, name, kind)
        monkeypatch.setitem(sys.modules, "far_away", module)
        points = [EntryPoint(name, f"far_away:{name}", "allranks.engines") for name in kinds]

        def entry_points(*, group, name=None):
            assert group == "allranks.engines"
            return [point for point in points if name in {None, point.name}]

        monkeypatch.setattr(engine_registry, "entry_points", entry_points)

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    register()
    return register


def test_own_engines_are_there_without_any_entry_point(others):
    others()
    assert engine_registry.engine_names() == OWN
    assert [engine_kind(name).name for name in OWN] == list(OWN)


def test_an_engine_of_another_package_is_chosen_by_its_name_alone(others):
    others(far=FarKind())
    engine, why = choose_engine("far")
    assert (engine.name, why) == ("far", "asked for")
    assert choose_engine("auto")[0].name == "process"


def test_an_engine_cannot_take_the_name_of_an_own_one(others):
    others(process=FarKind())
    assert engine_registry.engine_names() == ("docker", "process", "slurm")
    assert isinstance(choose_engine("process")[0].cleaner(), ProcessEngine)


def test_an_engine_that_is_not_there_is_an_error_with_those_that_are(others):
    others(far=FarKind())
    with pytest.raises(EngineError) as raised:
        engine_kind("lsf")
    assert raised.value.what == "There is no engine lsf."
    assert raised.value.why == "There are: docker, process, slurm, far."


def test_an_engine_whose_package_is_broken_is_an_error_that_names_it(others):
    others(far=None)
    with pytest.raises(EngineError, match=r"The engine far cannot be loaded \(far_away:far\)"):
        choose_engine("far")


def test_an_engine_whose_import_leaves_ends_no_run(others, tmp_path, monkeypatch):
    others(leaves=FarKind())
    monkeypatch.delitem(sys.modules, "far_away")
    (tmp_path / "far_away.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineError, match="SystemExit: 0"):
        engine_kind("leaves")


@pytest.fixture
def closed(others, monkeypatch):  # noqa: ARG001 - names a daemon
    """A socket that this user may not open; root may open any."""

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
    [found] = [finding for finding in examine("auto", "none", tmp_path) if finding.subject == "Docker"]
    assert "This user may not use Docker" in found.text
    assert "usermod -aG docker" in found.remedy


def test_a_socket_in_a_closed_folder_is_tried(monkeypatch):
    class Closed:
        def exists(self):
            raise PermissionError(13, "Permission denied")

    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(containers, "_SOCKET", Closed())
    assert engine_kind("docker").why_not() == ""


def test_clean_goes_on_where_an_engine_is_broken_or_not_here(others):
    others(broken=None, far=FarKind())
    assert [engine.name for engine in cleaners()] == ["process", "far"]
    assert [engine.name for engine in cleaners(beside="process")] == ["far"]
    absent = FarKind()
    absent.lacks = "no such cluster"
    others(far=absent)
    assert [engine.name for engine in cleaners()] == ["process"]


@pytest.mark.usefixtures("locks")
def test_the_doctor_tells_of_a_broken_engine(others, tmp_path):
    others(broken=None)
    [found] = [finding for finding in examine("auto", "none", tmp_path) if finding.subject == "broken"]
    assert "cannot be loaded" in found.text
    assert found.remedy


MATRIX = """
[matrix]
backend = ["gloo"]
world_size = [2]

[[runners]]
labels = ["cluster"]
engine = "{engine}"

[engines.far]
partition = "gpu"

[suites.unit]
path = "tests"

[images.cpu]
torch = "2.13.0"
"""


def test_a_runner_may_name_it_and_its_table_is_kept_as_it_is(others, tmp_path):
    others(far=FarKind())
    (tmp_path / "tests").mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX.format(engine="far"))
    matrix = load(tmp_path).matrix
    assert matrix.runners[0].engine == "far"
    assert matrix.engines == {"far": {"partition": "gpu"}}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (MATRIX.format(engine="fat"), r"'fat' is none of 'auto', 'docker', 'process', 'slurm', 'far'"),
        (MATRIX.format(engine="far").replace("engines.far", "engines.docker"), r"this engine is allranks' own"),
        (MATRIX.format(engine="far").replace("[engines.far]", "[engines]"), "engines"),
    ],
)
def test_a_wrong_name_or_table_is_an_error_at_its_line(others, tmp_path, text, error):
    others(far=FarKind())
    (tmp_path / "tests").mkdir()
    (tmp_path / "matrix.toml").write_text(text)
    with pytest.raises(MatrixError, match=error):
        load(tmp_path)
