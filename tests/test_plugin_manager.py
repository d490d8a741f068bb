"""Plug-ins of allranks and of other packages, and their errors."""

import importlib
import importlib.metadata
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, make_dataclass
from types import SimpleNamespace

import pytest

from allranks import plugin_manager
from allranks.cli import main as cli
from allranks.cli.parser import CommandOptions, flag, option
from allranks.engines.package import package_folder
from allranks.errors import AllranksError, ExitCode, UsageError
from allranks.plugin_manager import CAN_FAIL, OWN, Command, added_commands, implements, load_plugins
from allranks.report.section import Section, SectionMaker

pytestmark = pytest.mark.usefixtures("plugins_anew")


@dataclass(frozen=True, kw_only=True)
class Greeting(CommandOptions):
    """The options of a command of another package."""

    usage = "allranks greet [NAME]"

    name: str = option("NAME", "whom", "a name", nargs="?", default="world")


def plugin_with(name, line):
    """A plug-in with one command, which prints a line."""

    def run(options):
        print(line, options.name)
        return ExitCode.OK

    sys.modules[f"greeting_{name}"] = SimpleNamespace(Options=Greeting, run=run)

    @implements
    def allranks_commands():
        return (Command(name, f"greeting_{name}", CAN_FAIL, "say something"),)

    return SimpleNamespace(allranks_commands=allranks_commands)


FOLDERS = {path.parent.name for path in package_folder().glob("plugins/*/__init__.py")}


def test_all_own_plug_ins_are_registered():
    assert set(OWN) >= FOLDERS
    there = [name for name in OWN if name in FOLDERS]
    assert [name for name, _ in load_plugins().list_name_plugin()] == ["allranks", *there]


@pytest.mark.skipif(not FOLDERS, reason="there are no plug-ins")
def test_a_folder_that_a_deleted_plug_in_has_left_is_none(tmp_path, monkeypatch):
    """Python imports a folder with only bytecode as a package."""
    (tmp_path / "gone" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(plugin_manager, "OWN", ("gone", *OWN))
    plugins = importlib.import_module("allranks.plugins")
    monkeypatch.setattr(plugins, "__path__", [*plugins.__path__, str(tmp_path)])
    assert "gone" not in dict(load_plugins().list_name_plugin())


def test_a_command_of_another_package_is_one_of_allranks(other, capsys):
    other("lsf", lambda: plugin_with("greet", "hello"))
    assert cli.main(["greet", "moon"]) == 0
    assert capsys.readouterr().out == "hello moon\n"
    assert cli.main(["--help"]) == 0
    assert "greet  " in capsys.readouterr().out


def test_a_command_of_the_core_needs_no_plug_in(other, allranks, repository):  # noqa: ARG001 - the folder
    other("lsf", lambda: 1 / 0)
    assert allranks("plan")[0] == 0


@pytest.mark.parametrize(("name", "owner"), [("run", "allranks"), ("greet", "the plug-in sge")])
def test_a_second_command_of_a_name_is_refused(other, name, owner, capsys):
    other("sge", lambda: plugin_with("greet", "hello"))
    other("lsf", lambda: plugin_with(name, "hello"))
    assert cli.main(["--help"]) == ExitCode.INFRASTRUCTURE
    err = capsys.readouterr().err
    assert f"The plug-in lsf adds the command {name}, which already exists." in err
    assert f"It belongs to {owner}." in err


@pytest.mark.parametrize("found", [3, "greet", ("greet", "say hello"), None, {"name": "greet"}])
@pytest.mark.parametrize("is_on_github", [True, False])
def test_what_is_no_command_is_one_error_that_names_its_plug_in(other, capsys, monkeypatch, found, is_on_github):
    monkeypatch.setenv("GITHUB_ACTIONS", str(is_on_github).lower())
    hook = implements(lambda: [found])
    other("lsf", lambda: SimpleNamespace(allranks_commands=hook))
    assert cli.main(["--help"]) == ExitCode.INFRASTRUCTURE
    printed = capsys.readouterr()
    assert "The plug-in lsf adds an invalid command." in printed.out + printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    "error", [ImportError("no module lsf"), SystemExit(3), SyntaxError("bad"), ZeroDivisionError()]
)
@pytest.mark.parametrize("command", ["--help", "unknown", "run"])
def test_a_plug_in_that_cannot_be_loaded_is_one_error_that_names_it(other, error, capsys, command):
    def load():
        raise error

    other("lsf", load)
    assert cli.main([command]) == ExitCode.INFRASTRUCTURE
    err = capsys.readouterr().err
    assert "The plug-in lsf cannot be loaded (lsf.allranks)." in err
    assert "Traceback" not in err


def with_option(name):
    """A plug-in that adds an option to ``allranks report``."""
    moon = flag(name, "what is written", "look at the moon")
    kind = make_dataclass("MoonOptions", [("moon", bool, moon)], frozen=True, kw_only=True)

    @implements
    def allranks_options(command):
        return kind if command == "report" else None

    return SimpleNamespace(allranks_options=allranks_options, kind=kind)


def test_an_option_of_a_plug_in_is_one_of_the_command_that_it_names(other, capsys):
    other("lsf", lambda: with_option("--moon"))
    for command, is_there in (("report", True), ("run", False), ("plan", False)):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert ("--moon" in capsys.readouterr().out) == is_there


@pytest.mark.parametrize("returned", [3, int, {"--moon": None}])
def test_options_that_are_no_dataclass_are_one_error_that_names_the_plug_in(other, returned, capsys):
    hook = implements(lambda: returned)
    other("lsf", lambda: SimpleNamespace(allranks_options=hook))
    assert cli.main(["report"]) == ExitCode.INFRASTRUCTURE
    assert "The plug-in lsf adds options that are not a dataclass." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--policy", "--json", "-q", "--cell-in-classname", "--help"])
def test_an_option_that_is_already_there_is_one_error_that_names_it(other, name, capsys):
    other("lsf", lambda: with_option(name))
    assert cli.main(["report"]) == ExitCode.INFRASTRUCTURE
    err = capsys.readouterr().err
    assert "A plug-in adds an option to `allranks report` that already exists." in err
    assert name in err
    assert "Traceback" not in err


class Moon(SectionMaker):
    """Counts the tests of a run that ran at full moon: all of them."""

    name = "moon"

    def __init__(self, problem=""):
        self.tests, self.problem = 0, problem

    def __call__(self, suite):
        self.tests += len(suite.tests)

    def section(self, merged):
        headline = f"{self.tests} tests & their moon"
        row = f"{merged.counts.tests} <of> them"
        return Section(
            title="The moon",
            headline=headline,
            object={"tests": self.tests},
            lines=(row,),
            markdown=("- *all* of them",),
            html="<p>all of them</p>",
            problem=self.problem,
        )


@pytest.fixture
def moon(other):
    """``moon(problem)``: register a plug-in that adds a section to each report."""

    def add(problem=""):
        calls = []

        @implements
        def allranks_sections(options, matrix):
            calls.append((type(options).__module__, matrix))
            return [Moon(problem)]

        other("moon", lambda: SimpleNamespace(allranks_sections=allranks_sections))
        return calls

    return add


@pytest.fixture
def ranks(tmp_path):
    folder = tmp_path / "ranks"
    (folder / "gloo-w1-g0-env/s").mkdir(parents=True)
    (folder / "gloo-w1-g0-env/s/rank-0.xml").write_text('<testsuite><testcase classname="t" name="x"/></testsuite>')
    return folder


def test_a_plug_in_gets_the_values_of_its_options(other, ranks, allranks):
    plugin, calls = with_option("--moon"), []
    plugin.allranks_sections = implements(lambda options: calls.append(options.added[plugin.kind].moon) or ())
    other("lsf", lambda: plugin)
    allranks("report", str(ranks), "--moon")
    allranks("report", str(ranks))
    assert calls == [True, False]


def test_a_section_of_a_plug_in_is_in_every_form_of_the_report(moon, ranks, allranks):
    calls = moon()
    code, out, _ = allranks("report", str(ranks))
    assert (code, calls) == (0, [("allranks.cli.report", None)])
    assert "\n\nThe moon: 1 tests & their moon.\n1 <of> them\n" in out
    assert "\n\n### The moon: 1 tests & their moon\n\n- *all* of them\n" in (ranks / "summary.md").read_text()
    page = (ranks / "report.html").read_text()
    assert '<section id="moon" aria-labelledby="moon-title">' in page
    assert "The moon <small>1 tests &amp; their moon</small></h2><p>all of them</p></section>" in page
    assert json.loads((ranks / "report.json").read_text())["moon"] == {"tests": 1}
    assert json.loads(allranks("report", str(ranks), "--json")[1])["moon"] == {"tests": 1}


def test_a_section_with_a_problem_is_a_note_and_is_not_shown(moon, ranks, allranks):
    moon("The moon is new.")
    code, out, _ = allranks("report", str(ranks))
    assert code == 0
    assert "The moon is new.\n" in out
    assert "their moon" not in out + (ranks / "summary.md").read_text() + (ranks / "report.html").read_text()
    report = json.loads((ranks / "report.json").read_text())
    assert (report["moon"], report["notes"]) == ({"tests": 1}, ["The moon is new."])


def test_a_run_asks_for_sections_with_its_matrix(moon, allranks, runs, repository):
    calls = moon()
    assert allranks("run")[0] == 0
    [(_, options)] = runs
    assert isinstance(options.sections[-1], Moon)
    assert [(name, matrix.path) for name, matrix in calls] == [("allranks.cli.run", repository / "matrix.toml")]


def named(name):
    """A section maker with this name."""
    return type("Other", (Moon,), {"name": name})()


def test_a_second_section_of_a_name_is_refused_before_anything_is_merged(other, ranks, allranks):
    for plugin in ("moon", "tides"):
        hook = implements(lambda: [Moon()])
        other(plugin, lambda hook=hook: SimpleNamespace(allranks_sections=hook))
    code, _, err = allranks("report", str(ranks))
    assert code == ExitCode.INFRASTRUCTURE
    assert "The plug-in tides adds the section moon, which already exists." in err
    assert "It belongs to the plug-in moon." in err
    assert not (ranks / "report.json").exists()


@pytest.mark.parametrize("name", ["counts", "suites", "generator", "exit_code", "files", "failures", "slowest"])
def test_a_section_with_a_name_of_the_report_is_refused_before_anything_runs(other, name, ranks, allranks, runs):
    hook = implements(lambda: [named(name)])
    other("moon", lambda: SimpleNamespace(allranks_sections=hook))
    for command in (("report", str(ranks)), ("run",)):
        code, _, err = allranks(*command)
        assert code == ExitCode.INFRASTRUCTURE
        assert f"The plug-in moon adds the section {name}, which already exists." in err
        assert "It belongs to allranks." in err
    assert (runs, (ranks / "report.json").exists()) == ([], False)


@pytest.mark.parametrize(
    "maker", [named(name) for name in ("Moon", "a b", "", 'x" onclick="', "1st", "full-moon", 3, None)] + ["moon", Moon]
)
def test_a_section_without_a_usable_name_is_refused(other, maker, ranks, allranks):
    hook = implements(lambda: [maker])
    other("moon", lambda: SimpleNamespace(allranks_sections=hook))
    code, _, err = allranks("report", str(ranks))
    assert code == ExitCode.INFRASTRUCTURE
    assert "The plug-in moon adds a section without a valid name." in err
    assert "Traceback" not in err


def failing(hook, error):
    """A plug-in whose implementation of a hook raises."""

    def fail():
        raise error

    return SimpleNamespace(**{hook: implements(fail)})


HOOKS = {
    "allranks_commands": ("--help",),
    "allranks_options": ("run",),
    "allranks_engines": ("run",),
    "allranks_sections": ("report", "ranks"),
    "allranks_run": ("run",),
    "allranks_ci_service": ("report", "ranks"),
}


@pytest.mark.parametrize(
    "raised",
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError("place"), "KeyError: 'place'"),
        (SystemExit(3), "SystemExit: 3"),
        (AttributeError(), "AttributeError"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
    ],
)
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.usefixtures("ranks", "runs")
def test_a_hook_that_raises_is_one_error_that_names_its_plug_in(other, hook, raised, capsys, tmp_path):
    error, message = raised
    other("lsf", lambda: failing(hook, error))
    command, *rest = HOOKS[hook]
    code = cli.main([command, *(str(tmp_path / name) for name in rest)])
    err = capsys.readouterr().err
    assert code == ExitCode.INFRASTRUCTURE
    assert f"The plug-in lsf failed in its hook {hook}." in err
    assert f"  {message}.\n" in err
    assert "Traceback" not in err
    assert "bug in allranks" not in err


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.usefixtures("ranks", "runs")
def test_an_error_that_a_hook_raises_on_purpose_is_told_as_it_is(other, hook, capsys, tmp_path):
    other("lsf", lambda: failing(hook, UsageError("The moon is new.", remedy="Wait for two weeks.")))
    command, *rest = HOOKS[hook]
    assert cli.main([command, *(str(tmp_path / name) for name in rest)]) == ExitCode.USAGE
    assert "error: The moon is new.\n  Wait for two weeks.\n" in capsys.readouterr().err


@pytest.mark.parametrize("returned", [None, 3])
@pytest.mark.parametrize("hook", ["allranks_commands", "allranks_engines", "allranks_sections"])
@pytest.mark.usefixtures("ranks")
def test_a_hook_that_returns_no_list_is_one_error_that_names_its_plug_in(other, hook, returned, capsys, tmp_path):
    other("lsf", lambda: SimpleNamespace(**{hook: implements(lambda: returned)}))
    command, *rest = HOOKS[hook]
    assert cli.main([command, *(str(tmp_path / name) for name in rest)]) == ExitCode.INFRASTRUCTURE
    assert f"The plug-in lsf failed in its hook {hook}." in capsys.readouterr().err


def test_a_crash_of_the_run_that_a_plug_in_has_asked_for_is_a_bug_of_allranks(other):
    hook = implements(lambda options, run_here: run_here(options))
    other("lsf", lambda: SimpleNamespace(allranks_run=hook))

    def crash(_options):
        raise ZeroDivisionError

    options = SimpleNamespace(added=defaultdict(lambda: SimpleNamespace(inside=False)))
    with pytest.raises(AllranksError, match=r"allranks crashed: ZeroDivisionError") as raised:
        plugin_manager.run_by_plugins(expansion=None, results=None, options=options, run_here=crash)
    assert "bug in allranks" in raised.value.why


@pytest.mark.parametrize("name", ["allranks", *sorted(FOLDERS)])
def test_a_plug_in_with_a_name_of_allranks_is_one_error(other, name, capsys):
    other(name, lambda: plugin_with("greet", "hello"))
    assert cli.main(["--help"]) == ExitCode.INFRASTRUCTURE
    assert f"The plug-in {name} cannot be loaded ({name}.allranks)." in capsys.readouterr().err


@pytest.mark.parametrize("lacking", sorted(FOLDERS))
def test_without_a_plug_in_its_commands_are_missing_and_all_else_works(monkeypatch, lacking):
    found = importlib.util.find_spec
    monkeypatch.setattr(plugin_manager, "find_spec", lambda name: None if name.endswith(f".{lacking}") else found(name))
    assert lacking not in [command.name for command in added_commands(())]


def test_without_the_folder_of_plug_ins_the_core_has_its_commands(monkeypatch):
    monkeypatch.setitem(sys.modules, "allranks.plugins", None)
    monkeypatch.setattr(plugin_manager, "find_spec", lambda _: None)
    assert added_commands(()) == []
