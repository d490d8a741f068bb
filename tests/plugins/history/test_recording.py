"""Which commands record a run in which history, and what they print of it."""

import json
from pathlib import Path

import pytest

from allranks.errors import MatrixError
from allranks.matrix.declaration import load
from allranks.plugins.history.hooks import history_file
from allranks.plugins.history.recorder import HistoryRecorder

RANK = """<testsuites><testsuite name="pytest"><testcase classname="t" name="test_x" time="0.1">{}</testcase>
</testsuite></testsuites>"""
MINE = "\n[history]\n"
OWN = ".allranks-history.sqlite"


def add_to_matrix(repository, text):
    with (repository / "matrix.toml").open("a") as file:
        file.write(text)


def files(options):
    """The files in which a run would be recorded."""
    return [section.path for section in options.sections if isinstance(section, HistoryRecorder)]


@pytest.fixture
def ranks(tmp_path):
    """A folder with the JUnit XML of two ranks, of which the second has this result."""

    def write(result=""):
        folder = tmp_path / "ranks/gloo-w2-g0-env/tests"
        folder.mkdir(parents=True, exist_ok=True)
        for rank, own in enumerate(("", result)):
            (folder / f"rank-{rank}.xml").write_text(RANK.format(own))
        return str(tmp_path / "ranks")

    return write


@pytest.mark.parametrize(
    ("table", "arguments", "name"),
    [
        ("", "", None),
        (MINE, "", "{}/.allranks-history.sqlite"),
        (f"{MINE}runs = 3\n", "", "{}/.allranks-history.sqlite"),
        (MINE, "--seed 1", "{}/.allranks-history.sqlite"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_a_run_is_recorded_in_the_file_of_the_matrix(allranks, runs, table, arguments, name):
    add_to_matrix(Path(), table)
    allranks("run", *arguments.split())
    [(_, options)] = runs
    assert files(options) == ([] if name is None else [Path(name.format(Path.cwd()))])


def test_repetitions_of_a_test_are_not_recorded_in_the_history_of_the_matrix(allranks, runs, repository):
    add_to_matrix(repository, MINE)
    assert allranks("stress", "gloo-w2-g0-env", "--suite", "tiny", "--count", "3")[0] == 0
    [(_, options)] = runs
    assert files(options) == []


def test_a_part_of_a_plan_is_not_recorded_since_the_report_of_all_parts_is(allranks, runs, repository, monkeypatch):
    add_to_matrix(repository, '[[runners]]\nlabels = ["cpu"]\nwhen = "gpu_count == 0"\n' + MINE)
    arguments = ("--format", "github", "--where", "backend=gloo", "--plan-file", "plan.json")
    code, out, err = allranks("plan", *arguments)
    assert code == 0, err
    [batch, *_] = json.loads(out)["include"]
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
    monkeypatch.setenv("ALLRANKS_BATCH", batch["batch"])
    assert allranks("run")[0] == 0
    assert files(runs[0][1]) == []


def test_merge_records_the_run_and_reports_its_past(allranks, ranks):
    allranks("report", ranks(), "--history", "h.sqlite")
    folder = ranks('<failure message="no"/>')
    code, out, _ = allranks("report", folder, "--history", "h.sqlite")
    assert code == 1
    assert "History: 1 new; 2 runs recorded.\n  new, rank 1: t::test_x (gloo-w2-g0-env / tests)\n" in out
    output = json.loads(allranks("report", folder, "--history", "h.sqlite", "--json")[1])["history"]
    assert (output["runs"], output["problem"], output["tests"][0]["trend"]) == (2, None, "new")


@pytest.mark.parametrize(("table", "kept"), [(MINE, 500), (f"{MINE}runs = 2", 2)], ids=["by default", "as it says"])
@pytest.mark.usefixtures("repository")
def test_the_matrix_says_how_many_runs_are_kept_in_its_own_history(allranks, runs, table, kept):
    add_to_matrix(Path(), table)
    allranks("run")
    [recorder] = [section for section in runs[0][1].sections if isinstance(section, HistoryRecorder)]
    assert recorder.keep == kept


def kept_runs(allranks, path):
    return len(json.loads(allranks("history", "--history", str(path), "--json")[1])["runs"])


RESULTS = ("", "<skipped/>", '<failure message="no"/>', '<error message="no"/>')


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ("[history]\nruns = 2", 2),
        ("[history]", 4),
        ("[[wrong", 4),
        (None, 4),
    ],
)
def test_a_merge_keeps_as_many_runs_as_the_matrix_says_of_this_file(allranks, ranks, repository, table, kept):
    if table is None:
        (repository / "matrix.toml").unlink()
    else:
        add_to_matrix(repository, f"\n{table}\n")
    for result in RESULTS:
        allranks("report", ranks(result), "--history", OWN)
    assert kept_runs(allranks, OWN) == kept


def test_a_merge_into_another_history_keeps_as_many_runs_as_that_has(allranks, ranks, repository):
    add_to_matrix(repository, "\n[history]\nruns = 2\n")
    for result in RESULTS:
        allranks("report", ranks(result), "--history", "h.sqlite")
    assert kept_runs(allranks, "h.sqlite") == 4


@pytest.mark.parametrize("spoilt", ['\n[policy]\nbaseline = "gone.json"\n', "", None])
def test_a_merge_that_cannot_read_the_matrix_keeps_as_many_runs_as_before(
    allranks, ranks, repository, monkeypatch, spoilt
):
    matrix = repository / "matrix.toml"
    before = matrix.read_text()
    add_to_matrix(repository, "\n[history]\nruns = 3\n")
    allranks("report", ranks(), "--history", OWN)
    monkeypatch.setattr("allranks.plugins.history.changes.KEPT", 2)  # if the file is made by this merge
    if spoilt is None:
        matrix.unlink()
    else:
        matrix.write_text(before + spoilt)
    for result in RESULTS:
        allranks("report", ranks(result), "--history", OWN)
    assert kept_runs(allranks, OWN) == 3


@pytest.mark.usefixtures("repository")
def test_a_matrix_that_no_run_could_use_does_not_change_the_exit_code_of_a_merge(allranks, ranks, monkeypatch):
    monkeypatch.setenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "abc")
    assert allranks("report", ranks(), "--history", "h.sqlite")[0] == 0
    assert kept_runs(allranks, "h.sqlite") == 1


def test_a_history_that_cannot_be_used_is_a_warning(allranks, ranks):
    Path("h.sqlite").write_text("mine")
    code, out, _ = allranks("report", ranks(), "-q", "--history", "h.sqlite")
    assert (code, Path("h.sqlite").read_text()) == (0, "mine")
    assert out.startswith("h.sqlite does not have this run: it is not a history.")


@pytest.mark.parametrize("command", ["report", "history"])
def test_a_history_in_a_folder_that_is_not_there_is_refused(allranks, command):
    code, _, err = allranks(command, "--history", "/nope/h.sqlite")
    assert code == 2
    assert "cannot write '/nope/h.sqlite': its folder does not exist, or it is a folder" in err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[history]\nrusn = 3", ":24: history.rusn: there is no such key."),
        ("[history]\nruns = 1", ":24: history.runs: 1 is out of range."),
        ("[[history]]\nruns = 3", ":23: history: "),
        ("[histroy]\nruns = 3", ":23: histroy: there is no such key."),
    ],
)
def test_a_wrong_table_is_an_error_with_its_line(repository, table, message):
    add_to_matrix(repository, table)
    with pytest.raises(MatrixError) as caught:
        load(repository)
    assert caught.value.what.startswith(f"matrix.toml{message}")
    if "there is no such key" in message:
        assert "Did you mean" in caught.value.text


def test_a_matrix_without_the_table_has_no_history(repository):
    assert history_file(load(repository).matrix) is None
