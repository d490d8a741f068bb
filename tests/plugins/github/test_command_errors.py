"""An error of any command, as GitHub shows it: annotation, summary and output, and no command of anyone else's."""

import pytest
from markdown_it import MarkdownIt

from allranks.errors import EngineError, ImageError


@pytest.fixture
def step(tmp_path, monkeypatch):
    """A step of a workflow; its summary and its outputs."""
    files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for name, file in files.items():
        file.touch()
        monkeypatch.setenv(name, str(file))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    return lambda: [file.read_text() for file in files.values()]


def obeyed(text):
    """The lines that a runner takes for commands: of either form, and none between stop-commands and its word."""
    word, found = "", []
    for line in map(str.strip, text.splitlines()):
        if word:
            word = "" if line == f"::{word}::" else word
        elif line.startswith("::stop-commands::"):
            word = line.removeprefix("::stop-commands::")
        elif line.startswith("::") or "##[" in line:
            found.append(line)
    assert not word
    return found


def test_a_selection_that_leaves_nothing_is_annotation_summary_and_output(allranks, step):
    code, out, err = allranks("plan", "--where", "backend=gloo", "--where", "world_size=9", "--format", "github")
    assert (code, out) == (2, ""), "the output is for the workflow"
    [annotation] = obeyed(err)
    assert annotation.startswith(
        "::error title=allranks plan%3A exit code 2%3A the request or the matrix file is wrong::"
    )
    assert "The matrix has no cell with world_size 9." in annotation
    assert "allranks: error: The matrix has no cell" in err
    summary, outputs = step()
    assert summary.startswith("## allranks plan: exit code 2\n\nThe matrix has no cell with world\\_size 9.\n\n")
    assert outputs.startswith("reason=The matrix has no cell with world_size 9. ")
    assert outputs.endswith(" (exit code 2)\n")


def test_a_plug_in_that_cannot_be_loaded_is_an_annotation_too(allranks, step, other):
    def load():
        msg = "no module lsf"
        raise ImportError(msg)

    other("lsf", load)
    code, _, err = allranks("--help")
    assert code == 4
    [annotation] = obeyed(err)
    assert "The plug-in lsf cannot be loaded" in annotation
    assert "The plug-in lsf cannot be loaded" in step()[0]


def test_what_a_merge_refuses_is_on_the_stream_that_has_its_commands(allranks, step):
    code, out, err = allranks("report", "nowhere")
    assert (code, err) == (2, "")
    assert obeyed(out)[0].startswith("::error title=allranks report%3A exit code 2")
    assert "reason=There is no results folder nowhere." in step()[1]
    assert allranks("report", "nowhere", "--json")[1] == ""


def test_an_error_of_the_matrix_file_is_shown_beside_its_line(allranks, repository, step):
    text = (repository / "matrix.toml").read_text()
    (repository / "matrix.toml").write_text(text.replace('reason = "a GPU', 'raeson = "a GPU'))
    [annotation] = obeyed(allranks("plan")[2])
    assert ",file=matrix.toml,line=8::" in annotation
    assert step()[0]


FORGED = "pip says:\n::add-mask::x\n  ::error::y\n##[add-mask]z %0A::debug::a\n| a <b> `c` ``` **d**\n```\n# e\n- f"


@pytest.mark.parametrize(
    "error",
    [
        EngineError(FORGED),
        ImageError("No image.", why=FORGED, remedy="::error::r"),
        ImageError("- %0A::debug::a", why="1. x", remedy="---"),
        ImageError("1) %0A::debug::a", why="===", remedy="    x"),
    ],
)
def test_no_text_of_an_error_is_a_command_or_markdown(allranks, step, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("allranks.runner.run_jobs.run", fail)
    code, out, err = allranks("--debug", "run")
    assert (code, err) == (4, "")
    [annotation] = obeyed(out)
    assert annotation.startswith("::error title=allranks run%3A exit code 4")
    assert "%250A::debug::a" in annotation
    summary, outputs = step()
    assert outputs.count("\n") == 1
    assert {token.type for token in MarkdownIt().parse(summary)} <= {
        "heading_open", "heading_close", "inline", "paragraph_open", "paragraph_close", "fence",
    }  # fmt: skip
    assert "<b>" not in MarkdownIt().render(summary)
    assert "<strong>" not in MarkdownIt().render(summary)


def test_a_builders_long_output_is_shown_from_its_end(allranks, step, monkeypatch):
    def fail(*_):
        raise ImageError("No image.", why="\n".join(f"line {number}" for number in range(5000)))  # noqa: EM101

    monkeypatch.setattr("allranks.runner.run_jobs.run", fail)
    [annotation] = obeyed(allranks("run")[1])
    assert "No image.%0A" in annotation
    assert annotation.endswith("line 4999")
    assert len(annotation) < 5000
    assert step()[0].count("\n") < 60


def test_a_bug_is_shown_like_any_other_error(allranks, step, monkeypatch):
    monkeypatch.setattr("allranks.runner.run_jobs.run", lambda *_: 1 / 0)
    code, out, _ = allranks("run")
    assert code == 4
    assert "allranks crashed: ZeroDivisionError" in obeyed(out)[0]
    assert "allranks crashed" in step()[0]


@pytest.mark.parametrize("file", ["/dev/full", "/"])
def test_a_summary_that_cannot_be_written_hides_nothing(allranks, step, monkeypatch, file):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", file)
    monkeypatch.setenv("GITHUB_OUTPUT", file)
    code, _, err = allranks("plan", "nope")
    assert (code, step()) == (2, ["", ""])
    assert len(obeyed(err)) == 1
    assert "allranks: error: There is no cell 'nope'." in err


def test_elsewhere_nothing_is_written(allranks, step, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS")
    _, out, err = allranks("plan", "nope")
    assert (out, step(), obeyed(err)) == ("", ["", ""], [])
