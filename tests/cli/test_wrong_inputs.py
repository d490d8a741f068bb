"""Mistakes of users: each is a single error that says what happened, why, and what to do."""

from types import SimpleNamespace

import pytest

GLOO = """\
[matrix]
backend = ["gloo"]
world_size = [1, 2]

[suites.tiny]
path = "suite"

[images.all]
torch = "2.13.0"
"""
NCCL = GLOO.replace('"gloo"', '"nccl"')


def changed(before, after):
    assert before in GLOO
    return GLOO.replace(before, after)


FILES = {
    "no matrix file": (None, "There is no matrix file.", "allranks init"),
    "an empty file": ("", "the key matrix is missing", "[matrix]"),
    "no TOML": ("[matrix\n", "matrix.toml:1: this is not valid TOML.", "toml.io"),
    "a NUL": (changed("gloo", "gl\0oo"), "not valid TOML", "Illegal character"),
    "no suites": (GLOO.partition("[suites")[0], "the key suites is missing", "[suites.NAME]"),
    "no images": (GLOO.partition("[images")[0], "there is neither an image nor an interpreter", "[images.NAME]"),
    "a table alone": ("[process]\npython = 'python3'\n", "the key matrix is missing", "[matrix]"),
    "a misspelt table": (changed("[images", "[image"), "image: there is no such key", "'images'"),
    "a misspelt axis": (changed("world_size", "worldsize"), "worldsize: there is no such key", "'world_size'"),
    "a misspelt backend": (changed('"gloo"', '"glooo"'), "'glooo' is not a supported backend", "'gloo'"),
    "a number of twenty digits": (changed("1, 2", "9" * 20), f"{'9' * 20} is out of range", "from 1 to 10000"),
    "a number of a hundred digits": (changed("1, 2", "9" * 100), "more than 57 digits", "from 1 to 10000"),
    "a negative number": (changed("1, 2", "-1"), "-1 is out of range", "from 1 to 10000"),
    "a number in quotes": (changed("1, 2", '"2"'), "'2' is not a whole number", "without quotes"),
    "a fraction": (changed("1, 2", "1.5"), "1.5 is not a whole number", "at least 1"),
    "no value": (changed("1, 2", ""), "the list is empty", "world_size = [2, 4]"),
    "a value twice": (changed("1, 2", "2, 2"), "2 occurs twice", "once"),
    "too many combinations": (
        changed("[1, 2]", f"{[*range(1, 2000)]}\nnodes = {[*range(1, 1000)]}"),
        "combinations are too many",
        "Shorten the longest axis",
    ),
    "NCCL without GPUs": (NCCL, "no cell of this matrix can ever run", "gpu_count = [1, 2]"),
    "NCCL with too few GPUs": (NCCL.replace("1, 2]", "1, 2]\ngpu_count = [1]"), "can never run", "[[matrix.exclude]]"),
    "a path that is not there": (changed('"suite"', '"suit"'), "there is no 'suit'", "Create it"),
    "a path outside": (changed('"suite"', '"../x"'), "leads out of the repository", "move it"),
    "an absolute path": (changed('"suite"', '"/x"'), "is an absolute path", "relative"),
    "a version that is not exact": (changed("2.13.0", "2"), "is not one exact version", '"2.13.0"'),
    "a version without quotes": (changed('"2.13.0"', "2.13"), "is not one exact version", '"2.13.0"'),
    "a condition with one =": (
        GLOO + "[[env]]\nset = { A = '1' }\nwhen = \"backend = 'gloo'\"\n",
        "the condition cannot be read: invalid syntax",
        "backend == 'nccl'",
    ),
    "a condition on nothing": (
        GLOO + "[[env]]\nset = { A = '1' }\nwhen = \"bakend == 'gloo'\"\n",
        "has 'bakend', which is not an axis",
        "'backend'",
    ),
    "a table for an array": (GLOO + "[env]\n", "a table is not an array of tables", "[[env]]"),
    "a variable of allranks": (GLOO + "[[env]]\nset = { RANK = '1' }\n", "is not a valid name", "allranks itself sets"),
    "a negative limit": (GLOO + "[limits]\ntest = -5\n", "-5 is not a valid time", "above 0"),
    "limits that do not nest": (GLOO + "[limits]\nprocess_group = 300\n", "is not below test", "raise test"),
    "a name with a space": (changed("suites.tiny", "suites.'a b'"), "is not a valid name here", "63 letters"),
}  # fmt: skip

COMMANDS = {
    "plan --matrix nowhere.toml": (2, "There is no", "allranks init"),
    "plan --matrix suite": (2, "There is no matrix file.", "allranks init"),
    "plan glooo": (2, "There is no cell 'glooo'.", "Did you mean gloo?"),
    "plan gloo-w9": (2, "no cell with world_size 9", "`allranks plan` lists the cells"),
    "plan tiny": (2, "but a suite of that name", "--suite tiny"),
    "plan suite/test_b.py": (2, "There is no test file suite/test_b.py.", "suite/test_a.py"),
    "plan --suite tinny": (2, "There is no suite 'tinny'.", "'tiny'"),
    "plan --suite tiny@1of2": (2, "There is no shard", "set shards in"),
    "plan --where world_size=3": (2, "no cell with world_size 3", "lists the cells"),
    "plan --where world_size": (2, "has no value for world_size", "backend=gloo,world_size=2"),
    "plan --where worldsize=2": (2, "There is no axis 'worldsize'.", "'world_size'"),
    "plan --where world_size=-1": (2, "is not a whole number", "world_size=2"),
    "plan --where=": (2, "There is no cell ''", "An id looks like"),
    "plan --durations nowhere": (2, "there is no file 'nowhere'", "--help"),
    "plan --max-entries 0": (2, "'0' is not a whole number from 1 to 256", "--help"),
    "run --worldsize 2": (2, "has no option --worldsize", "Did you mean --where world_size=VALUE?"),
    "run --world-size=2": (2, "has no option --world-size", "Did you mean --where world_size=VALUE?"),
    "run --backend gloo": (2, "has no option --backend", "Did you mean --where backend=VALUE?"),
    "run -n 4": (2, "has no option -n", "Did you mean -j"),
    "run -j 0": (2, "'0' is not a whole number of at least 1", "--help"),
    "run --seed x": (2, "'x' is not a whole number", "--help"),
    f"run --reruns {'9' * 20}": (2, "is not a whole number", "--help"),
    "run --engine dokcer": (2, "'dokcer' is not an engine: choose from auto, docker, process", "--help"),
    "run --lf": (2, "There is no run to resume", "start a run"),
    "run --lf --resume": (2, "not allowed with", "--help"),
    "run gloo-w1 --pdb-rank 0": (2, "--pdb-rank needs a terminal", "Run it in a terminal"),
    "run -- --pdb": (2, "--pdb cannot be used", "--pdb-rank N"),
    "runn": (2, "There is no command 'runn'.", "'run'"),
    "report": (2, "There is no results folder", "allranks run"),
    "report nowhere": (2, "There is no results folder nowhere.", "allranks report DIR"),
    "report matrix.toml": (2, "matrix.toml is a file", "allranks show matrix.toml"),
    "report suite": (2, "There is nothing to merge", "--ranks-xml PATTERN"),
    "report suite --ranks-xml *.xml": (2, "is not valid", "'{cell}/{suite}/rank-{rank}.xml'"),
    "report suite --baseline nowhere": (2, "nowhere is not a baseline.", "--update-baseline"),
    "init": (2, "already has matrix.toml", "--force overwrites"),
    "init nowhere": (2, "There is no folder nowhere.", "Create it"),
    "init suite --source x": (2, "neither a checkout of allranks nor a wheel", "--source WHEEL"),
    "clean --older-than 1d": (2, "need --images", "Add --images"),
    "clean --images --older-than soon": (2, "'soon' is invalid: write an age such as 14d", "--help"),
    "doctor --cell gloo-w9": (2, "no cell with world_size 9", "lists the cells"),
}

VARIABLES = {
    "ALLRANKS_RUN_ID=a b": ("ALLRANKS_RUN_ID is 'a b'", "letters"),
    "ALLRANKS_GPU_MODE=x": ("ALLRANKS_GPU_MODE is 'x'", "Choose from auto"),
    "ALLRANKS_BATCH=x": ("ALLRANKS_BATCH is set, but ALLRANKS_PLAN_FILE is not", "unset both"),
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=x": ("is 'x', which is not a valid time", "unset it"),
}


@pytest.fixture
def fail(allranks, in_repository):
    """``fail(matrix, *arguments)``: the single error of a command, and its exit code."""
    (in_repository / "suite" / "test_a.py").write_text("def test_a(): pass\n")

    def run(matrix, *arguments):
        file = in_repository / "matrix.toml"
        file.unlink()
        if matrix is not None:
            file.write_text(matrix)
        code, out, err = allranks(*arguments)
        first, *rest = err.splitlines()
        assert first.startswith("allranks: error: ")
        assert rest
        assert all(line.startswith("  ") for line in rest), "one error, and no traceback"
        assert out == ""
        return SimpleNamespace(code=code, what=first, rest="\n".join(rest))

    return run


@pytest.mark.parametrize(("matrix", "what", "remedy"), FILES.values(), ids=list(FILES))
def test_a_wrong_matrix_file_is_an_error(fail, matrix, what, remedy):
    error = fail(matrix, "plan")
    assert (error.code, what in error.what, remedy in error.rest) == (2, True, True), error


@pytest.mark.parametrize(("line", "code", "what", "remedy"), [(line, *expected) for line, expected in COMMANDS.items()])
def test_a_wrong_command_is_an_error(fail, line, code, what, remedy):
    error = fail(GLOO, *line.split())
    assert (error.code, what in error.what, remedy in error.rest) == (code, True, True), error


@pytest.mark.parametrize(("variable", "what", "remedy"), [(name, *expected) for name, expected in VARIABLES.items()])
def test_a_wrong_variable_is_an_error(fail, monkeypatch, variable, what, remedy):
    monkeypatch.setenv(*variable.split("="))
    error = fail(GLOO, "run")
    assert (error.code, what in error.what, remedy in error.rest) == (2, True, True), error


def test_a_matrix_file_that_is_a_folder_is_an_error(allranks, in_repository):
    (in_repository / "matrix.toml").unlink()
    (in_repository / "matrix.toml").mkdir()
    code, _, err = allranks("plan")
    assert (code, "matrix.toml is a folder" in err, "allranks init" in err) == (2, True, True)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [("run.json", "{", "run.json is damaged"), ("rank-0.xml", "<testsuite", "rank-0.xml cannot be read to the end")],
)
def test_results_that_cannot_be_read_are_errors_of_the_report(allranks, in_repository, name, text, what):
    (in_repository / "ranks").mkdir()
    (in_repository / "ranks" / name).write_text(text)
    code, out, err = allranks("report", "ranks", *(("--world-size", "1") if name.endswith("xml") else ()))
    assert (code, what in out, err) == (3, True, "")
