"""The log that GitHub Actions reads."""

from dataclasses import replace
from string import ascii_lowercase

import pytest

from allranks.cli.main import main
from allranks.plugins.github import console
from allranks.plugins.github.console import ActionsConsole, ActionsListener, annotation
from allranks.plugins.github.workflow_commands import Commands, is_on_actions
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Printed, RankEnded
from allranks.report.failure_groups import Failure
from allranks.report.input_rule import InputRule
from allranks.report.merging import merge
from allranks.report.results import VerdictKind
from allranks.report.run_files import JobError
from allranks.runner.console import console_for
from allranks.runner.progress import Tests

NOTHING = "cell/s: no test ran (1.0 s)"


@pytest.fixture
def commands(lines):
    made = Commands(lines)
    made.disable()
    return made


@pytest.fixture
def live(lines, commands):
    return ActionsListener(say=lines, commands=commands)


def taken(lines):
    """The commands that a runner would take of a log, as its own parser finds them (ActionCommandManager.cs)."""
    word, found = "", []
    for line in map(str.lstrip, lines):
        if word:
            word = "" if line == f"::{word}::" else word
        elif line.startswith("::stop-commands::"):
            word = line.removeprefix("::stop-commands::")
        elif line.startswith("::"):
            found.append(line)
    return found


def shown(lines):
    """The rest: what a person reads."""
    return [line for line in lines if not line.startswith("::")]


def failed(nodeid, message, text=""):
    """The failure of rank 1 of two."""
    return RankEnded(
        nodeid=nodeid, rank=1, outcome=Outcome.FAILED, world_size=2, arrived=2.0, message=message, text=text
    )


def output(line, rank=0):
    return Printed(rank=rank, line=line)


def test_what_jobs_print_is_a_group_of_each_when_it_ends(live, lines):
    live.take("cell/s", output("one"))
    live.take("cell/t", output("other"))
    live.take("cell/s", output("two", 1))
    assert shown(lines) == []
    live.job_ended("cell/s", Tests(), 1.0, None)
    assert taken(lines) == ["::group::cell/s: what its ranks printed", "::endgroup::"]
    assert shown(lines) == ["[rank 0] one", "[rank 1] two", NOTHING]
    assert lines[-1] == NOTHING


def test_a_job_that_prints_nothing_has_no_group(live, lines):
    live.job_ended("cell/s", Tests(), 1.0, None)
    assert (taken(lines), shown(lines)) == ([], [NOTHING])


def test_no_test_can_issue_commands_or_guess_the_token_that_enables_them(live, lines, commands):
    error = JobError(kind="collection", what="No.", why="::add-mask::x\n  ::error::y")
    for job in ("cell/s", "cell/t"):
        live.take(job, output("x"))
        live.job_ended(job, Tests(), 1.0, error)
    assert "    ::add-mask::x" in lines
    assert [command.split("::")[1] for command in taken(lines)] == ["group", "endgroup"] * 2
    words = [line for line in lines if line.startswith("::stop-commands::")]
    assert len(set(words)) == len(words) == 5
    commands.enable()
    commands.enable()
    lines("::warning::ours")
    assert taken(lines)[-1] == "::warning::ours"


def test_a_flood_is_cut(live, lines, monkeypatch):
    monkeypatch.setattr(console, "_KEPT", 2)
    for number in range(5):
        live.take("cell/s", output(str(number)))
    live.job_ended("cell/s", Tests(), 1.0, None)
    assert shown(lines)[:3] == ["[rank 0] 0", "[rank 0] 1", "(truncated; see rank-N.log)"]


def test_the_first_failure_is_printed_at_once(live, lines):
    live.take("cell/s", failed("t", "no"))
    assert shown(lines) == ["cell/s: first failure: rank 1 failed in t: no"]


@pytest.fixture
def merged(tmp_path):
    """A run of as many tests as wanted that fail in ways of their own."""

    def make(count):
        cases = "".join(
            f"<testcase classname='a' name='t{number}'><failure message='no {letter}, 50%: a&#10;b'/></testcase>"
            for number, letter in enumerate(ascii_lowercase[:count])
        )
        (tmp_path / "rank-0.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return merge(tmp_path, InputRule(world_size=1))

    return make


@pytest.mark.parametrize(("count", "shown_count"), [(0, 0), (3, 3), (10, 10), (25, 10)])
def test_failures_are_annotations_as_many_as_are_shown(merged, lines, commands, count, shown_count):
    ActionsConsole(lines, commands).annotate(merged(count))
    found = taken(lines)
    assert len(found) == shown_count
    assert all(line.startswith("::error title=") and "\n" not in line for line in found)
    if count > shown_count:
        assert found[-1] == "::error title=allranks::16 more failures in the report"


def test_an_annotation_names_the_file_and_ends_nowhere_early():
    failure = Failure(
        job="gloo-w2 / s", nodeid="suite/test_a.py::test_x[a,b::c]", kind=VerdictKind.FAILURE,
        message="rank 0 failed: 50%\n::error::x", more=2, file="suite/test_a.py",
    )  # fmt: skip
    assert annotation(failure) == (
        "::error title=gloo-w2 / s%3A suite/test_a.py%3A%3Atest_x[a%2Cb%3A%3Ac],file=suite/test_a.py"
        "::rank 0 failed: 50%25%0A::error::x (3 tests)"
    )


def test_the_first_failure_of_a_job_has_its_traceback_in_a_group(live, lines):
    text = "/srv/suite/test_a.py:7: in test_x\n    check(rank)\n"
    text += "/srv/suite/helper.py:2: in check\n    ::add-mask::x\nE   no"
    live.take("cell/s", failed("suite/test_a.py::test_x", "no", text))
    live.take("cell/s", failed("suite/test_a.py::test_y", "no", text))
    assert shown(lines) == [
        "cell/s: first failure: rank 1 failed in suite/test_a.py::test_x: no",
        "suite/test_a.py:7 in test_x",
        "    check(rank)",
        "suite/helper.py:2 in check",
        "    ::add-mask::x",
    ]
    assert taken(lines) == ["::group::where rank 1 failed in suite/test_a.py::test_x", "::endgroup::"]


def test_an_annotation_has_the_path_from_the_root_of_the_repository():
    failure = Failure(job="c / s", nodeid="x", kind=VerdictKind.ERROR, message="no", file="suite/test_a.py", line=31)
    assert ",file=pkg/suite/test_a.py,line=31::" in annotation(failure, "pkg")
    assert ",file=suite/test_a.py,line=31::" in annotation(replace(failure, file="../suite/test_a.py"), "pkg")


def test_an_annotation_names_the_line():
    failure = Failure(job="c / s", nodeid="x", kind=VerdictKind.ERROR, message="no", file="suite/test_a.py", line=31)
    assert ",file=suite/test_a.py,line=31::no" in annotation(failure)


def test_what_befell_a_job_has_no_file():
    failure = Failure(job="c / s", nodeid="allranks::job", kind=VerdictKind.ERROR, message="lost")
    assert annotation(failure) == "::error title=c / s%3A allranks%3A%3Ajob::lost"


def test_a_step_has_its_commands_again_when_the_run_is_over_whatever_happened(lines, merged):
    def run():
        with console_for(lines, environ={"GITHUB_ACTIONS": "true"}) as shown_by:
            with shown_by.watch(["cell/s"]) as live:
                assert isinstance(live, ActionsListener)
            shown_by.annotate(merged(1))
            raise KeyError

    with pytest.raises(KeyError):
        run()
    lines("::warning::ours")
    assert [command.split("::")[1].split()[0] for command in taken(lines)] == ["error", "warning"]


def test_a_step_of_a_workflow_is_known_by_its_environment():
    assert is_on_actions({"GITHUB_ACTIONS": "true"})
    assert not is_on_actions({"GITHUB_ACTIONS": ""})
    assert not is_on_actions({})


RANK_XML = """\
<testsuite name="pytest" tests="1" failures="1"><testcase classname="tests.test_a" name="test_x" file="tests/test_a.py">
<failure message="no&#10;::error::forged">no&#10;::add-mask::forged</failure></testcase></testsuite>
"""


def test_merging_annotates_and_takes_no_command_from_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "rank-0.xml").write_text(RANK_XML)
    assert main(["report", str(tmp_path), "--world-size", "1"]) == 1
    [command] = taken(capsys.readouterr().out.splitlines())
    assert command.startswith("::error title=")
    assert "test_x" in command
