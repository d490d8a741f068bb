from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import ExitCode, MatrixError, UsageError
from allranks.matrix.axes import AXES, backend_problem
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.model import Limits, Matrix, Policy

VARIABLE = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"
AXES_LINES = '[matrix]\nbackend = ["gloo"]\nworld_size = [2]\n'
REST = '[suites.t]\npath = "suites"\n[images.cpu]\ntorch = "2.13.0"\n'


def test_axes_are_read_with_their_defaults(load_text):
    matrix = load_text(AXES_LINES + REST)
    assert dict(matrix.axes) == {
        "backend": ("gloo",),
        "world_size": (2,),
        "gpu_count": (0,),
        "init_method": ("env",),
        "nodes": (1,),
        "torch": ("",),
    }
    assert tuple(matrix.axes) == AXES


def test_a_single_value_stands_for_a_list_of_one(load_text):
    assert load_text('[matrix]\nbackend = "gloo"\nworld_size = 2\n' + REST).axes["world_size"] == (2,)


def test_every_table_is_read(load_text, repository, document):
    (repository / "data").mkdir()
    (repository / "more.txt").touch()
    text = document.replace('path = "suites/collectives"', 'path = "suites/collectives"\n' + SUITE_REST)
    text = text.replace('torch = "2.13.0"', 'torch = "2.13.0"\n' + IMAGE_REST)
    matrix = load_text(text + ALL_ELSE)
    suite, image = matrix.suites["collectives"], matrix.images["cpu"]
    assert (suite.paths, suite.isolation, suite.files) == ((Path("suites/collectives"),), "job", (Path("data"),))
    assert suite.when is not None
    assert suite.overlap == 4
    assert suite.test_groups == {"port": ("test_a.py::TestPort", "test_b.py")}
    assert (suite.process_group, suite.launches_ranks) == (False, True)
    assert suite.pytest_args == ("-p", "no:randomly")
    assert suite.default is False
    assert (image.base, image.index, image.packages) == ("debian:12", "https://example.org/whl", ("numpy",))
    assert image.extra_index == ("https://example.org/more",)
    assert (image.requirements, image.project, image.line) == (Path("more.txt"), Path(), 27)
    assert [rule.reason for rule in matrix.excludes] == ["a GPU for each rank", "gloo is tested on CPU tensors"]
    assert [rule.line for rule in matrix.excludes] == [6, 10]
    assert matrix.env[0].set == {"NCCL_DEBUG": "WARN"}
    assert matrix.policy == Policy(skip="pass", mixed_skip=("*test_x*",))
    assert matrix.limits == Limits(process_group=5, test=20.5, job=600, peer_grace=1, memory_mib=512)
    assert matrix.process.python == "python3.12"


def test_the_variable_of_torchs_harness_sets_the_limit_of_a_test(load_text, document, monkeypatch):
    monkeypatch.setenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "30")
    limits = load_text(document).limits
    assert (limits.process_group, limits.test, limits.job) == (15, 30, 1800)


def test_a_long_limit_from_the_environment_makes_room_in_the_job(load_text, document, monkeypatch):
    monkeypatch.setenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "3600")
    limits = load_text(document).limits
    assert (limits.process_group, limits.test, limits.job) == (60, 3600, 7200)


@pytest.mark.parametrize(
    ("limits", "variable", "names"),
    [
        ({}, "", {}),
        ({}, "100", {"test": VARIABLE, "process_group": f"half of {VARIABLE}"}),
        ({}, "300", {"test": VARIABLE}),
        ({}, "3600", {"test": VARIABLE, "job": f"twice {VARIABLE}"}),
        ({"process_group": 5}, "100", {"test": VARIABLE}),
        ({"test": 90}, "100", {}),
    ],
)
def test_a_limit_has_the_setting_that_set_it(load_text, monkeypatch, limits, variable, names):
    monkeypatch.setenv(VARIABLE, variable)
    table = "".join(f"{name} = {value}\n" for name, value in limits.items())
    assert load_text(AXES_LINES + REST + f"[limits]\n{table}").limits.settings == names


def test_the_matrix_overrules_the_variable_of_torchs_harness(load_text, document, monkeypatch):
    monkeypatch.setenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "30")
    assert load_text(document + "\n[limits]\ntest = 99").limits.test == 99


@pytest.mark.parametrize("wrong", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_in_the_environment_that_is_no_time_is_refused(load_text, document, monkeypatch, wrong):
    monkeypatch.setenv("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", wrong)
    with pytest.raises(UsageError, match="DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"):
        load_text(document)


ALL_ELSE = """
[policy]
skip = "pass"
mixed_skip = ["*test_x*"]
[limits]
process_group = 5
test = 20.5
job = 600
peer_grace = 1
memory_mib = 512
[process]
python = "python3.12"
"""
SUITE_REST = """\
isolation = "job"
overlap = 4
process_group = false
launches_ranks = true
when = "world_size > 1"
files = ["data"]
pytest_args = ["-p", "no:randomly"]
default = false
test_groups = { port = ["test_a.py::TestPort", "test_b.py"] }
"""
IMAGE_REST = """\
base = "debian:12"
index = "https://example.org/whl"
packages = ["numpy"]
requirements = "more.txt"
project = "."
extra_index = ["https://example.org/more"]
"""


def test_the_matrix_may_be_in_pyproject(repository):
    inner = (AXES_LINES + REST).replace("[matrix]", "[tool.allranks.matrix]")
    inner = inner.replace("[suites", "[tool.allranks.suites").replace("[images", "[tool.allranks.images")
    (repository / "pyproject.toml").write_text("[project]\nname = 'x'\n" + inner)
    assert load(repository).matrix.path == repository / "pyproject.toml"
    (repository / "pyproject.toml").write_text("[project]\nname = 'x'\n" + inner.replace("[2]", "['2']"))
    with pytest.raises(MatrixError, match=r"^pyproject.toml:5: tool.allranks.matrix.world_size: '2' is not"):
        load(repository)


def test_matrix_toml_goes_before_pyproject(load_text, repository):
    (repository / "pyproject.toml").write_text("[tool.allranks.matrix]\nbackend = 1")
    assert load_text(AXES_LINES + REST).path.name == "matrix.toml"


def test_tool_in_pyproject_that_is_no_table_is_an_error(repository):
    (repository / "pyproject.toml").write_text("\ntool = 1")
    with pytest.raises(MatrixError, match=r"^pyproject.toml:2: tool is not a table"):
        load(repository)


def test_a_file_may_be_named(load_text, repository):
    load_text(AXES_LINES + REST)
    renamed = (repository / "matrix.toml").rename(repository / "other.toml")
    assert load(renamed).matrix.path == renamed


def test_the_path_of_the_matrix_is_absolute(load_text, repository):
    load_text(AXES_LINES + REST)
    assert load(Path()).matrix.root == repository


@pytest.mark.parametrize("pyproject", [None, "[project]\nname = 'x'"])
def test_missing_file_is_an_error_with_the_searched_paths_and_a_remedy(repository, pyproject):
    if pyproject:
        (repository / "pyproject.toml").write_text(pyproject)
    with pytest.raises(MatrixError, match="no matrix file") as caught:
        load(repository)
    assert str(repository / "matrix.toml") in caught.value.why
    assert str(repository / "pyproject.toml") in caught.value.why
    assert "allranks init" in caught.value.remedy
    assert caught.value.exit_code is ExitCode.USAGE


def test_missing_folder_is_an_error(repository):
    with pytest.raises(MatrixError, match=r"There is no .*nowhere"):
        load(repository / "nowhere")


def test_unreadable_file_is_an_error(repository, monkeypatch):
    (repository / "matrix.toml").touch()

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(MatrixError, match=r"cannot be read.\nPermission denied"):
        load(repository)


@pytest.mark.parametrize(
    ("content", "start", "why"),
    [
        (b"[matrix]\nbackend = [", "matrix.toml:2:", "Invalid"),
        (b"[matrix]\nbackend = nccl\n", "matrix.toml:2:", "Invalid value"),
        (b"a = 1\n[matrix]\na = 1\na = 2\n", "matrix.toml:4:", "Cannot overwrite"),
        (b"a = " + b"[" * 5000, "matrix.toml:1:", ""),
        (b"a = " + b"1" * 5000, "matrix.toml:1:", "digits"),
        (b"\xff\xfe", "matrix.toml:1:", "not UTF-8"),
    ],
)
def test_malformed_toml_is_an_error_with_its_line(repository, content, start, why):
    (repository / "matrix.toml").write_bytes(content)
    with pytest.raises(MatrixError, match="not valid TOML") as caught:
        load(repository)
    assert caught.value.what.startswith(start)
    assert why in caught.value.why


@pytest.fixture
def load_edited(load_text, document):
    def load_with(old: str, new: str) -> Matrix:
        assert old in document
        return load_text(document.replace(old, new, 1))

    return load_with


@pytest.mark.parametrize(
    ("old", "new", "start", "remedy"),
    [
        # keys
        ("[matrix]", "[matrics]", "matrix.toml:1: matrics: there is no such key", "Did you mean 'matrix'?"),
        ("world_size = [1, 2]", "worldsize = [1]", "matrix.toml:4: matrix.worldsize: there is no", "'world_size'"),
        ("world_size = [1, 2]", "", "matrix.toml:1: matrix: the key world_size is missing", "world_size = [2, 4]"),
        ("[[env]]", "[[environment]]", "matrix.toml:25: environment: there is no such key", "Known: 'matrix'"),
        ('reason = "a GPU', 'raeson = "a GPU', "matrix.toml:8: matrix.exclude.raeson: there is no", "'reason'"),
        ('reason = "a GPU for each rank"', "", "matrix.toml:6: matrix.exclude: the key reason is missing", "reason ="),
        ("set = {", "sets = {", "matrix.toml:27: env.sets: there is no such key", "Did you mean 'set'?"),
        # axes
        (
            '"gloo", "nccl"]',
            '"gloo", "ncll"]',
            "matrix.toml:3: matrix.backend: 'ncll' is not a supported backend",
            "'nccl'?",
        ),
        (
            '"gloo", "nccl"]',
            '"gloo", "NCCL"]',
            "matrix.toml:3: matrix.backend: 'NCCL' is not a supported backend",
            "'nccl'?",
        ),
        ('"gloo", "nccl"]', '"gloo", "zoom"]', "matrix.toml:3: matrix.backend: 'zoom'", "custom_backends"),
        ('"gloo", "nccl"]', '"gloo", 1]', "matrix.toml:3: matrix.backend: 1 is not a string", '["gloo", "nccl"]'),
        ("['mine']", "['Mine']", "matrix.toml:2: matrix.custom_backends: 'Mine' is not a valid", "lower-case letter"),
        (
            "['mine']",
            "[1]",
            "matrix.toml:2: matrix.custom_backends: 1 is not a string",
            "custom_backends =",
        ),
        ("[1, 2]", "[]", "matrix.toml:4: matrix.world_size: the list is empty", "world_size = [2, 4]"),
        ("[1, 2]", "[1, 2, 1]", "matrix.toml:4: matrix.world_size: 1 occurs twice", "once"),
        ("[1, 2]", "[1, 0]", "matrix.toml:4: matrix.world_size: 0 is out of range", "from 1 to"),
        ("[1, 2]", f"[{2**40}]", "matrix.toml:4: matrix.world_size: 1099511627776 is out of range", "from 1 to"),
        ("[1, 2]", "[0x" + "f" * 5000 + "]", "matrix.toml:4: matrix.world_size: a number of more than 57", "from 1 to"),
        ("[1, 2]", "['1']", "matrix.toml:4: matrix.world_size: '1' is not a whole number", "without quotes"),
        ("[1, 2]", "[true]", "matrix.toml:4: matrix.world_size: true is not a whole number", "whole number"),
        ("[1, 2]", "[[1]]", "matrix.toml:4: matrix.world_size: a list is not a whole number", "whole number"),
        ("[0, 1, 2]", "[-1]", "matrix.toml:5: matrix.gpu_count: -1 is out of range", "from 0 to"),
        (
            "[0, 1, 2]",
            "[0]\ninit_method = 'udp'",
            "matrix.toml:6: matrix.init_method: 'udp' is not one of 'env', 'tcp'",
            "'tcp'",
        ),
        ("[0, 1, 2]", "[0, 1, 2]\nnodes = [0]", "matrix.toml:6: matrix.nodes: 0 is out of range", "from 1 to"),
        # conditions
        (
            "gpu_count != world_size",
            "gpus != world_size",
            "matrix.toml:7: matrix.exclude.when: the cond",
            "'gpu_count'",
        ),
        ("'nccl' and", "'ncll' and", "matrix.toml:7: matrix.exclude.when: the condition has 'ncll'", "'nccl'?"),
        ("'nccl' and", "1 and", "matrix.toml:7: matrix.exclude.when: the condition compares backend", "'nccl'"),
        (
            '"gpu_count == 0"',
            '"gpu_count == 3"',
            "matrix.toml:21: images: the cell gloo-w1-g0-env has no",
            "change one",
        ),
        ('"gpu_count == 0"', "0", "matrix.toml:18: images.cpu.when: 0 is not a string", "when ="),
        ('"gpu_count == 0"', '" "', "matrix.toml:18: images.cpu.when: is blank", "leave it out"),
        # tables
        ("[matrix]", "policy = 1\n[matrix]", "matrix.toml:1: policy: 1 is not a table", "[policy]"),
        (
            "[matrix]",
            "runners = 1\n[matrix]",
            "matrix.toml:1: runners: 1 is not an array of tables",
            "[[runners]]",
        ),
        ("[matrix]", "[matrix]\ninclude = [{}]", "matrix.toml:2: matrix.include: there is no such key", "exclude]]"),
        # suites
        ('path = "suites/collectives"', "", "matrix.toml:14: suites.collectives: the key path is missing", "path ="),
        ('"suites/collectives"', '"suites/x"', "matrix.toml:15: suites.collectives.path: there is no", "Create it"),
        ('"suites/collectives"', f'"{"x" * 500}"', "matrix.toml:15: suites.collectives.path: there is no", "Create it"),
        ('"suites/collectives"', '"/"', "matrix.toml:15: suites.collectives.path: '/' is an absolute", "relative"),
        ('"suites/collectives"', '".."', "matrix.toml:15: suites.collectives.path: '..' leads out", "below"),
        (
            '"suites/collectives"',
            '"a\\u0000b"',
            "matrix.toml:15: suites.collectives.path: is blank or contains",
            "Write",
        ),
        (
            '"suites/collectives"',
            '"suites"\nisolation = "files"',
            "matrix.toml:16: suites.collectives.isolation:",
            "'file'?",
        ),
        (
            '"suites/collectives"',
            '"suites"\nignored_notices = ["sate"]',
            "matrix.toml:16: suites.collectives.ignored_notices: 'sate' is not one of 'state', 'threads', 'processes'",
            "'state'?",
        ),
        (
            '"suites/collectives"',
            '"suites"\noverlap = 0',
            "matrix.toml:16: suites.collectives.overlap: 0 is out",
            "from 1",
        ),
        ('"suites/collectives"', '"suites"\nfiles = ["no"]', "matrix.toml:16: suites.collectives.files: there is", ""),
        (
            '"suites/collectives"',
            '"suites"\nfiles = "no"',
            "matrix.toml:16: suites.collectives.files: 'no' is not a list of paths",
            'files = ["tests/data"]',
        ),
        (
            '"suites/collectives"',
            '"suites"\ndefault = "no"',
            "matrix.toml:16: suites.collectives.default: 'no' is not true or false",
            "default = false",
        ),
        (
            '"suites/collectives"',
            '"suites"\nlaunches_ranks = true\nprocess_group = true',
            "matrix.toml:17: suites.collectives.process_group: tests that launch ranks themselves",
            "Remove it",
        ),
        ("[suites.collectives]", "[suites.'a/b']", "matrix.toml:14: suites.'a/b': is not a valid name", "letters"),
        (
            '[suites.collectives]\npath = "suites/collectives"',
            "",
            "matrix.toml:1: the file: the key suites is missing",
            "[suites.NAME]  path =",
        ),
        # images
        ('torch = "2.13.0"', "", "matrix.toml:17: images.cpu: the torch version of the image is unknown", "torch ="),
        ('torch = "2.13.0"', 'base = "b"', "matrix.toml:17: images.cpu: the torch version of the image is", "torch ="),
        ('torch = "2.13.0"', 'torch = ">=2"', "matrix.toml:19: images.cpu.torch: '>=2' is not one exact", '"2.13.0"'),
        ('torch = "2.13.0"', "torch = 2.13", "matrix.toml:19: images.cpu.torch: 2.13 is not one exact", 'torch = "'),
        (
            'torch = "2.13.0"',
            'torch = "2.13.0"\nimage = "x"',
            "matrix.toml:19: images.cpu.torch: a prebuilt",
            "Remove image",
        ),
        ('torch = "2.13.0"', 'torch = "2.13.0"\nproject = "no"', "matrix.toml:20: images.cpu.project: there is", ""),
        (
            'when = "gpu_count == 0"\n',
            "",
            "matrix.toml:20: images: the cell nccl-w1-g1-env has 2 images",
            "exclude each",
        ),
        (
            'when = "gpu_count > 0"\n',
            "",
            "matrix.toml:21: images: the cell gloo-w1-g0-env has 2 images",
            "exclude each",
        ),
        # environment
        ('"WARN"', "1", "matrix.toml:27: env.set.NCCL_DEBUG: 1 is not a string", 'in quotes:  "1"'),
        ("NCCL_DEBUG =", "'A=B' =", "matrix.toml:27: env.set.'A=B': is not a valid name here", "letters"),
        (
            "NCCL_DEBUG =",
            "WORLD_SIZE =",
            "matrix.toml:27: env.set.WORLD_SIZE: is not a valid name here",
            "allranks itself sets",
        ),
        ('{ NCCL_DEBUG = "WARN" }', "1", "matrix.toml:27: env.set: 1 is not a table", "[env.set]"),
        ("[[env]]", "[env]", "matrix.toml:25: env: a table is not an array of tables", "[[env]]"),
    ],
)
def test_mistake_names_file_line_key_and_remedy(load_edited, old, new, start, remedy):
    with pytest.raises(MatrixError) as caught:
        load_edited(old, new)
    assert caught.value.what.startswith(start)
    assert remedy in caught.value.remedy
    assert caught.value.remedy or caught.value.why


@pytest.mark.parametrize(
    ("tail", "start", "remedy"),
    [
        ("[policy]\nskip = 'fail'", "matrix.toml:29: policy.skip: 'fail' is not one of", "Known: 'skip', 'pass'."),
        ("[limits]\ntest = 'long'", "matrix.toml:29: limits.test: 'long' is not a number of seconds", "test = 300"),
        ("[limits]\ntest = 0", "matrix.toml:29: limits.test: 0 is not a valid time", "above 0"),
        ("[limits]\njob = nan", "matrix.toml:29: limits.job: nan is not a valid time", "above 0"),
        (
            "[limits]\ntest = 30",
            "matrix.toml:29: limits.test: process_group (60 s) is not below test (30 s)",
            "below test",
        ),
        ("[limits]\ntest = 3600", "matrix.toml:29: limits.test: test (3600 s) is not below job", "below job"),
        ("[limits]\nmemory_mib = 0.5", "matrix.toml:29: limits.memory_mib: 0.5 is not a whole number", "at least 256"),
        ("[limits]\nmemory_mib = 1", "matrix.toml:29: limits.memory_mib: 1 is out of range", "from 256 to"),
        ("[process]\npython = ''", "matrix.toml:29: process.python: is blank", "leave it out"),
        ("[process]\nphyton = 'x'", "matrix.toml:29: process.phyton: there is no such key", "'python'"),
        ("limits = 1", "matrix.toml:28: env.limits: there is no such key", "Known"),
    ],
)
def test_mistake_after_the_environment_names_its_own_line(load_text, document, tail, start, remedy):
    with pytest.raises(MatrixError) as caught:
        load_text(document + tail)
    assert caught.value.what.startswith(start)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("axis", ["world_size", "gpu_count", "nodes"])
def test_a_million_ranks_are_a_mistake(load_text, axis):
    lines = AXES_LINES.replace("world_size = [2]\n", "") if axis == "world_size" else AXES_LINES
    with pytest.raises(MatrixError, match=rf"matrix.{axis}: 1000000 is out of range.*\n.*to 10000\."):
        load_text(f"{lines}{axis} = 1_000_000\n{REST}")


@pytest.mark.parametrize(
    ("table", "when"),
    [
        ("[[matrix.exclude]]\nreason = 'x'", "backend == 'nccl' and gpu_count < world_size"),
        ("[[matrix.exclude]]\nreason = 'x'", "world_size == 4"),
        ("[[env]]\nset = {}", "init_method in ['env', 'tcp']"),
        ("[images.other]\nimage = 'x'", "gpu_count == 1"),
        ("[[runners]]\nlabels = ['x']", "nodes == 2"),
    ],
)
def test_a_rule_for_a_value_that_left_its_axis_is_a_warning(load_text, table, when):
    [warning] = load_text(f'{AXES_LINES}{table}\nwhen = "{when}"\n{REST}').warnings
    key = table.strip("[").partition("]")[0]
    assert warning.startswith(f"matrix.toml:6: {key}.when: the condition has ")
    assert "is not on the axis" in warning


@pytest.mark.parametrize(
    ("table", "when", "remedy"),
    [
        ("[[matrix.exclude]]\nreason = 'x'", "backend == 'ncll'", "Known: 'gloo'"),
        ("[[matrix.exclude]]\nreason = 'x'", "backend == 'nccl' or init_method == 'envy'", "'env'?"),
        ("[[env]]\nset = {}", "world_size == 0", "Known: 2."),
        ("[suites.s]\npath = 'suites'", "backend == 'nccl'", "Known: 'gloo'"),
        ("[suites.s]\npath = 'suites'", "world_size == 4", "Known: 2."),
    ],
)
def test_a_value_that_no_axis_could_have_is_an_error_and_so_is_any_other_of_a_suite(load_text, table, when, remedy):
    with pytest.raises(MatrixError, match="is not on the axis") as caught:
        load_text(f'{AXES_LINES}{table}\nwhen = "{when}"\n{REST}')
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("packages", [["num py"], ["numpy", "expecttest=1"], ["numpy>=two"], ["a, b"]])
def test_what_pip_could_not_read_is_no_package(load_text, packages):
    with pytest.raises(MatrixError, match=r"matrix.toml:8: images.cpu.packages: '.*' is not a requirement") as caught:
        load_text(f"{AXES_LINES}{REST}packages = {packages}\n")
    assert "numpy>=2" in caught.value.remedy


def test_packages_are_whatever_pip_installs(load_text):
    packages = [
        "numpy>=2,<3; python_version>'3.8'",
        "a[b]",
        "x @ https://example.org/x.whl",
        "git+https://h/r",
        "./x",
        "--pre",
    ]
    assert load_text(f"{AXES_LINES}{REST}packages = {packages}\n").images["cpu"].packages == tuple(packages)


@pytest.mark.parametrize("line", ["image = 'python 3'", "base = 'python: 3'"])
def test_the_name_of_an_image_has_no_blanks(load_text, line):
    rest = REST.replace('torch = "2.13.0"\n', "") if "image" in line else REST
    with pytest.raises(MatrixError, match="is not a valid name of an image"):
        load_text(f"{AXES_LINES}{rest}{line}\n")


def test_debian_packages_of_an_image_are_read(load_text):
    names = ["libnuma1", "libstdc++6", "pciutils=1:3.9.0-4", "libc6:arm64"]
    assert load_text(AXES_LINES + REST + f"apt = {names}\n").images["cpu"].apt == tuple(names)


@pytest.mark.parametrize("name", ["numpy>=2", "-o Foo=1", "a; rm -rf /", "Libfoo", "$(id)", "x", "libfoo libbar"])
def test_what_cannot_be_a_debian_package_is_an_error_before_any_shell_sees_it(load_text, name):
    with pytest.raises(MatrixError, match="is not a valid name of a Debian package") as error:
        load_text(AXES_LINES + REST + f"apt = [{name!r}]\n")
    assert "images.cpu.apt" in error.value.what


def test_a_finished_image_gets_no_debian_packages(load_text):
    text = AXES_LINES + REST.replace('torch = "2.13.0"', 'image = "x:1"') + 'apt = ["libnuma1"]\n'
    with pytest.raises(MatrixError, match="used as it is"):
        load_text(text)


def test_cell_without_an_image_is_an_error_that_lists_the_rules(load_text, document):
    with pytest.raises(MatrixError, match="the cell nccl-w1-g1-env has no image") as caught:
        load_text(document.replace('"gpu_count > 0"\ntorch', '"gpu_count > 1"\ntorch'))
    assert "images.cpu on line 17, when = 'gpu_count == 0'" in caught.value.why
    assert "images.cuda on line 21, when = 'gpu_count > 1'" in caught.value.why


def test_nccl_without_a_gpu_for_each_rank_is_an_error_that_gives_the_exclude(load_text, document):
    rule = (
        '[[matrix.exclude]]\nwhen = "backend == \'nccl\' and gpu_count != world_size"\nreason = "a GPU for each rank"\n'
    )
    with pytest.raises(MatrixError, match=r"the cell nccl-w1-g0-env can never run \(2 more like it\)") as caught:
        load_text(document.replace(rule, ""))
    assert "when = \"backend == 'nccl' and gpu_count < world_size\"" in caught.value.remedy


def test_more_nodes_than_ranks_is_an_error_that_gives_the_exclude(load_text):
    with pytest.raises(MatrixError, match="gloo-w2-g0-env-n3 can never run") as caught:
        load_text(AXES_LINES + "nodes = [1, 3]\n" + REST)
    assert 'when = "nodes > world_size"' in caught.value.remedy


def test_nodes_that_do_not_divide_the_world_size_are_allowed(load_text):
    matrix = load_text(AXES_LINES.replace("[2]", "[3]") + "nodes = 2\n" + REST)
    assert [cell.id for cell in expand(matrix).cells] == ["gloo-w3-g0-env-n2"]


def test_a_backend_is_listed_once():
    assert backend_problem("x", ("gloo", "mine"), "")[1].count("'gloo'") == 1


def test_a_backend_of_ones_own_is_allowed_by_name(load_text):
    text = AXES_LINES.replace('["gloo"]', '["mine"]\ncustom_backends = ["mine"]')
    assert expand(load_text(text + REST)).cells[0].id == "mine-w2-g0-env"


ROOT_WORDS = ["matrix", "suites", "images", "env", "policy", "limits", "process", "exclude", "include", "when", "set"]
WORDS = [*ROOT_WORDS, *AXES, "reason", "path", "torch", "image", "isolation", "files", "test", "job", "custom_backends"]
scalars = st.one_of(
    st.integers(-3, 9).map(str),
    st.sampled_from(["true", "nan", "-inf", "1e400", "1979-05-27", "07:32:00", "0x" + "f" * 5000, "''", '"\\u0000"']),
    st.sampled_from(["gloo", "nccl", "env", "suites", "2.13.0", "gpu_count == 0", "world_size", "not"]).map(repr),
    st.text("ab \n'\"\\=[]{}#.é\0", max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.tuples(st.sampled_from(WORDS), inner).map(lambda pair: "{{ {} = {} }}".format(*pair)),
    ),
    max_leaves=4,
)
keys = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(".".join)
snippets = st.one_of(
    st.tuples(keys, values).map(" = ".join),
    keys.map("[{}]".format),
    keys.map("[[{}]]".format),
    values,
    st.text(max_size=10),
)


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    """The text with a few spans, lines or values replaced."""
    for _ in range(draw(st.integers(1, 3))):
        lines = text.split("\n")
        place = draw(st.integers(0, len(lines) - 1))
        key = lines[place].partition("=")[0]
        lines[place] = draw(st.one_of(snippets, values.map(lambda value, key=key: f"{key}= {value}"), st.just("")))
        text = "\n".join(lines)
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(st.sampled_from(["", "", "[", "]", "'", '"', "=", "\n", ".", " "])) + text[start:]
    return text


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scratch")
    (folder / "suites" / "collectives").mkdir(parents=True)
    return folder


def check_that_only_a_matrix_error_comes(folder: Path, content: bytes) -> None:
    (folder / "matrix.toml").write_bytes(content)
    try:
        cells = load(folder).cells
    except MatrixError as error:
        outcome: tuple[object, ...] = (error.what, error.remedy)
    else:
        outcome = (len(cells),)
    assert all(outcome)


@given(data=st.data())
def test_no_mutation_of_a_matrix_file_raises_anything_but_a_matrix_error(scratch, document, data):
    text = data.draw(mutations(document + ALL_ELSE))
    check_that_only_a_matrix_error_comes(scratch, text.encode(errors="surrogatepass"))


@given(content=st.one_of(st.binary(), st.lists(snippets).map(lambda lines: "\n".join(lines).encode(errors="replace"))))
def test_no_garbage_raises_anything_but_a_matrix_error(scratch, content):
    check_that_only_a_matrix_error_comes(scratch, content)


@given(text=st.text())
def test_no_condition_in_a_file_raises_anything_but_a_matrix_error(scratch, text):
    quoted = "".join(f"\\U{ord(letter):08x}" for letter in text if not "\ud800" <= letter <= "\udfff")
    content = f'{AXES_LINES}[[matrix.exclude]]\nreason = "x"\nwhen = "{quoted}"\n{REST}'
    check_that_only_a_matrix_error_comes(scratch, content.encode())


def test_a_baseline_is_a_file_that_is_there(load_text, document, repository):
    assert load_text(document).policy.baseline is None
    (repository / "executed.json").write_text("{}")
    assert load_text(document + "[policy]\nbaseline = 'executed.json'\n").policy.baseline == Path("executed.json")


@pytest.mark.parametrize(
    ("file", "words"), [("/tmp/executed.json", "is an absolute path"), ("gone.json", "there is no 'gone.json'")]
)
def test_a_baseline_that_is_not_there_is_an_error_and_no_open_gate(load_text, document, file, words):
    with pytest.raises(MatrixError, match=rf"^matrix.toml:\d+: policy.baseline: .*{words}"):
        load_text(f"{document}[policy]\nbaseline = '{file}'\n")


def test_a_project_is_installed_unless_its_mode_is_copy(load_text):
    text = AXES_LINES + REST + 'project = "."\n'
    assert load_text(text).images["cpu"].mode == "install"
    assert load_text(text + 'mode = "copy"\n').images["cpu"].mode == "copy"


@pytest.mark.parametrize(
    ("lines", "what"),
    [('project = "."\nmode = "copied"', "is not one of"), ('mode = "copy"', "and there is none")],
)
def test_a_mode_that_is_none_or_of_no_project_is_refused(load_text, lines, what):
    with pytest.raises(MatrixError) as error:
        load_text(AXES_LINES + REST + lines + "\n")
    assert "images.cpu.mode" in error.value.what
    assert what in error.value.what


def test_the_matrix_file_of_the_docs_has_the_four_cells_that_they_promise(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "matrix.md").read_text()
    (tmp_path / "matrix.toml").write_text(page.partition("```toml\n# matrix.toml\n")[2].partition("```")[0])
    (tmp_path / "tests/distributed").mkdir(parents=True)
    expansion = load(tmp_path)
    assert [cell.id for cell in expansion.cells] == [
        "gloo-w2-g0-env",
        "gloo-w4-g0-env",
        "nccl-w2-g2-env",
        "nccl-w4-g4-env",
    ]
