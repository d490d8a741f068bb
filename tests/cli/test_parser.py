"""Help pages, and errors in command lines."""

import re

import pytest

from allranks.cli.main import commands
from allranks.errors import MEANING, ExitCode

COMMANDS = [command.name for command in commands()]


def codes_of(page):
    """The table of exit codes at the end of a help page."""
    return dict(re.findall(r"^  (\d+) +(.+)$", page.partition("exit codes:\n")[2], re.MULTILINE))


@pytest.mark.parametrize("command", [(), ("run",), ("report",), ("stress",)], ids=" ".join)
def test_help_has_every_exit_code_of_commands_that_judge(allranks, command):
    code, out, _ = allranks(*command, "--help")
    assert code == 0
    assert codes_of(out) == {f"{code:d}": MEANING[code] for code in ExitCode}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_groups_and_ends_with_exit_codes(allranks, command):
    _, out, _ = allranks(command, "-h")
    assert out.startswith(f"usage: allranks {command} ")
    assert "\noptions:" not in out
    assert {"0", "2", "4", "130"} <= codes_of(out).keys()


def test_help_of_run_fits_on_a_page(allranks):
    _, out, _ = allranks("run", "--help")
    groups = re.split(r"^\w[^\n]*:$", out.partition("exit codes:")[0], flags=re.MULTILINE)
    sizes = [len(re.findall(r"^  -", group, re.MULTILINE)) for group in groups]
    assert (sum(sizes) <= 20, max(sizes) <= 7, len(groups) > 5) == (True, True, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pln"], "There is no command 'pln'.\n  Did you mean 'plan'?"),
        (["-x", "rnu"], "Did you mean 'run'?"),
        (["run", "--sute", "x"], "allranks run has no option --sute.\n  Did you mean --suite?"),
        (["run", "--suit=x"], "Did you mean --suite?"),
        (["run", "--maxfail=1"], "pytest, write it after --: allranks run -- --maxfail=1"),
        (["run", "--pdb"], "Did you mean --pdb-rank?"),
        (["doctor", "--engin", "docker"], "Did you mean --engine?"),
        (["report", "x", "--policy", "ski"], "choose from skip, pass (did you mean skip?)"),
        (["plan", "-x"], "pytest, write it after --: allranks plan -- -x"),
        (["plan", "--format", "jsn"], "(did you mean json?)"),
        (["run", "--engine", "dokcer"], "(did you mean docker?)"),
        (["doctor", "b"], "allranks doctor takes no argument 'b'."),
        (["doctor", "--", "-x"], "This command takes no pytest arguments, but these were given: -x"),
        (["-v", "run"], "Write the options of a command after its name: allranks run -v"),
        (["run", "--reruns"], "--reruns: expected one argument.\n  usage: allranks run "),
        ([], "A command is required."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_an_error_with_a_remedy(allranks, arguments, message):
    code, out, err = allranks(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("error: ") == err.count("\n") - err.count("\n  ") == 1


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_has_a_short_option(allranks, flag):
    code, out, _ = allranks(flag)
    assert (code, out.split()[0]) == (0, "allranks")


@pytest.mark.parametrize("arguments", [("--debug", "plan", "nope"), ("plan", "nope", "--debug")])
def test_debug_may_come_before_or_after_the_command(allranks, arguments):
    assert "Traceback" in allranks(*arguments)[2]


@pytest.mark.usefixtures("runs")
def test_cells_may_be_between_options(allranks, runs):
    assert allranks("run", "gloo-w1-g0-env", "-j", "2", "gloo-w2-g0-env", "--suite", "tiny")[0] == 0
    [(jobs, options)] = runs
    assert jobs == ["gloo-w1-g0-env/tiny", "gloo-w2-g0-env/tiny"]
    assert options.policy.most == 2
