"""The paths of a suite: patterns and excludes."""

from pathlib import Path

import pytest

from allranks.errors import MatrixError
from allranks.matrix.jobs import suites_with_tests

HEAD = '[matrix]\nbackend = "gloo"\nworld_size = 2\n[images.cpu]\ntorch = "2.13.0"\n[suites.t]\n'
FILES = (
    *("a/test_one.py", "a/test_two.py", "a/slow/test_three.py", "a/__pycache__/test_one.pyc"),
    *("b/test_four.py", "b/test_[five].py", "b/.hidden/test_six.py"),
)


@pytest.fixture
def suite_of(load_text, repository):
    for name in FILES:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).touch()

    def read(lines):
        return load_text(HEAD + lines).suites["t"]

    return read


@pytest.mark.parametrize(
    ("path", "paths"),
    [
        ("'a'", ["a"]),
        ("'.'", ["."]),
        ("['b/test_four.py', 'a']", ["b/test_four.py", "a"]),
        ("'a/*.py'", ["a/test_one.py", "a/test_two.py"]),
        ("'*/test_t*.py'", ["a/test_two.py"]),
        ("'**/test_t*.py'", ["a/slow/test_three.py", "a/test_two.py"]),
        ("['b/test_four.py', '?/test_*.py']", ["b/test_four.py", "a/test_one.py", "a/test_two.py", "b/test_[five].py"]),
        ("['a/test_one.py', 'a', 'a/slow/']", ["a"]),
        ("'a/**'", ["a"]),
        ("'a/*'", ["a/slow", "a/test_one.py", "a/test_two.py"]),
        ("'b/test_[five].py'", ["b/test_[five].py"]),
        ("'b/test_[ef]our.py'", ["b/test_four.py"]),
    ],
)
def test_a_path_is_one_or_many_and_may_have_patterns(suite_of, path, paths):
    suite = suite_of(f"path = {path}")
    assert [str(path) for path in suite.paths] == paths
    assert suite.ignored == ()


@pytest.mark.parametrize(
    ("path", "exclude", "paths", "ignored"),
    [
        ("'a'", "['a/slow']", ["a"], ["a/slow"]),
        ("'a'", "['a/slow/*', 'a/slow']", ["a"], ["a/slow"]),
        ("['a', 'b']", "['**/test_[!t]*.py']", ["a", "b"], ["a/test_one.py", "b/test_[five].py", "b/test_four.py"]),
        ("'a/*.py'", "['a/test_two.py']", ["a/test_one.py"], ["a/test_two.py"]),
        ("['a', 'b']", "['b', 'a/test_one.py']", ["a"], ["a/test_one.py", "b"]),
    ],
)
def test_what_is_excluded_is_left_out_and_ignored(suite_of, path, exclude, paths, ignored):
    suite = suite_of(f"path = {path}\nexclude = {exclude}")
    assert [str(path) for path in suite.paths] == paths
    assert [str(path) for path in suite.ignored] == ignored


@pytest.mark.parametrize(
    ("lines", "key", "what"),
    [
        ("path = []", "path", "the list is empty"),
        ("path = ['a', 'no']", "path", "there is no 'no'"),
        ("path = 'a/*.txt'", "path", "nothing matches 'a/*.txt'"),
        ("path = '**/__pycache__'", "path", "nothing matches"),
        ("path = ['a', '../x']", "path", "'../x' leads out of the repository"),
        ("path = '../*'", "path", "leads out of the repository"),
        ("path = '/tmp/*'", "path", "is an absolute path"),
        ("path = ['a', 1]", "path", "1 is not a string"),
        ("path = 1", "path", "1 is not a string"),
        ("path = ['a', '']", "path", "blank"),
        ("path = 'a'\nexclude = 'a/slow'", "exclude", "is not a list of paths"),
        ("path = 'a'\nexclude = ['a/fast*']", "exclude", "nothing matches 'a/fast*'"),
        ("path = 'a'\nexclude = ['b/*.py']", "exclude", "excludes nothing from the suite"),
        ("path = 'a'\nexclude = ['../*']", "exclude", "leads out of the repository"),
        ("path = ['a', 'b']\nexclude = ['?']", "exclude", "all tests of the suite are excluded"),
    ],
)
def test_a_wrong_path_or_pattern_is_an_error_that_names_it(suite_of, lines, key, what):
    with pytest.raises(MatrixError) as caught:
        suite_of(lines)
    assert f"suites.t.{key}: " in caught.value.what
    assert what in caught.value.what
    assert caught.value.remedy


def test_thousands_of_files_are_no_burden(suite_of, repository):
    many = [Path("b") / f"test_{number}.py" for number in range(3000)]
    for path in many:
        (repository / path).touch()
    suite = suite_of("path = 'b/test_*.py'\nexclude = ['b/test_1*.py']")
    assert len(suite.paths) == sum(path.name[5] != "1" for path in many) + 2


@pytest.mark.parametrize(
    ("argument", "held"),
    [("a/test_one.py::test_x", ("t",)), ("b/test_four.py", ("t",)), ("a/slow/test_three.py", ()), ("a", ("t",))],
)
def test_a_test_names_the_suite_whose_paths_have_it_unless_it_is_excluded(suite_of, load_text, argument, held):
    suite_of("path = 'a'")
    matrix = load_text(HEAD + "path = ['a', 'b/test_four.py']\nexclude = ['a/slow']")
    assert suites_with_tests(matrix, [argument]) == held
