"""Plug-ins: allranks' own, those of other packages, and what is wrong with them."""

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

from allranks import plugin_manager
from allranks.cli import main as cli
from allranks.errors import ExitCode
from allranks.plugin_manager import CAN_FAIL, OWN, Command, added_commands, implements, load_plugins


@pytest.fixture
def other(monkeypatch):
    """``other(name, load)``: a plug-in of another package; the commands are collected anew."""

    def add(name, load):
        point = SimpleNamespace(name=name, value=f"{name}.allranks", load=load)
        monkeypatch.setattr(
            plugin_manager, "entry_points", lambda group: [point] if group == "allranks.plugins" else []
        )
        cli.commands.cache_clear()

    yield add
    cli.commands.cache_clear()


def plugin_with(name, said):
    """A plug-in with one command, which prints a line."""

    def run(_options):
        print(said)
        return ExitCode.OK

    @implements
    def allranks_commands():
        return (Command(name, lambda parser: parser.set_defaults(command=run), CAN_FAIL, "say something"),)

    return SimpleNamespace(allranks_commands=allranks_commands)


def test_all_own_plug_ins_are_registered():
    assert [name for name, _ in load_plugins().list_name_plugin()] == list(OWN)


def test_a_command_of_another_package_is_one_of_allranks(other, capsys):
    other("lsf", lambda: plugin_with("greet", "hello"))
    assert cli.main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "greet" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "owner"), [("run", "allranks"), ("stress", "the plug-in stress")])
def test_a_second_command_of_a_name_is_refused(other, name, owner, capsys):
    other("lsf", lambda: plugin_with(name, "hello"))
    assert cli.main(["plan"]) == ExitCode.INFRASTRUCTURE
    err = capsys.readouterr().err
    assert f"The plug-in lsf adds the command {name}, which is already there." in err
    assert f"It is a command of {owner}." in err


@pytest.mark.parametrize(
    "error", [ImportError("no module lsf"), SystemExit(3), SyntaxError("bad"), ZeroDivisionError()]
)
def test_a_plug_in_that_cannot_be_loaded_is_one_error_that_names_it(other, error, capsys):
    def load():
        raise error

    other("lsf", load)
    assert cli.main(["plan"]) == ExitCode.INFRASTRUCTURE
    err = capsys.readouterr().err
    assert "The plug-in lsf cannot be loaded (lsf.allranks)." in err
    assert "Traceback" not in err


@pytest.mark.parametrize("lacking", OWN)
def test_without_a_plug_in_its_commands_are_missing_and_all_else_works(monkeypatch, lacking):
    found = importlib.util.find_spec
    monkeypatch.setattr(plugin_manager, "find_spec", lambda name: None if name.endswith(f".{lacking}") else found(name))
    names = [command.name for command in added_commands(())]
    assert names
    assert lacking not in names


def test_without_the_folder_of_plug_ins_the_core_has_its_commands(monkeypatch):
    monkeypatch.setitem(sys.modules, "allranks.plugins", None)
    monkeypatch.setattr(plugin_manager, "find_spec", lambda _: None)
    assert added_commands(()) == []
