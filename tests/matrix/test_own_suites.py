"""``path = "allranks:NAME"``: the suites of allranks."""

import pytest

from allranks.errors import MatrixError
from allranks.matrix import suite_paths
from allranks.matrix.jobs import suites_with_tests

HEAD = '[matrix]\nbackend = "gloo"\nworld_size = 2\n[images.cpu]\ntorch = "2.13.0"\n[suites.kit]\n'
TEST = "collectives/test_broadcast.py::test_any_rank_can_be_the_source"


def test_a_suite_of_allranks_is_found_by_its_name(load_text):
    suite = load_text(f'{HEAD}path = "allranks:collectives"').suites["kit"]
    assert (suite.home / suite.paths[0] / "test_broadcast.py").is_file()
    assert [str(path) for path in suite.paths] == ["collectives"]


def test_a_list_of_one_is_the_same(load_text):
    one, other = (load_text(f"{HEAD}path = {text}") for text in ("'allranks:collectives'", "['allranks:collectives']"))
    assert one.suites == other.suites


def test_a_folder_without_tests_of_its_own_is_no_suite():
    assert "collectives" in suite_paths.own_names()
    assert "torch" not in suite_paths.own_names()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "path = 'allranks:colectives'",
            r"matrix\.toml:7: suites\.kit\.path: .*no suite 'colectives'.*\n.*'collectives'",
        ),
        ("path = 'allranks:../collectives'", "no suite"),
        ("path = ['allranks:collectives', 'tests']", "one of several paths"),
        ("path = 'allranks:collectives'\nexclude = ['x']", "exclude does not apply"),
        ("path = 'allranks:collectives'\nfiles = ['suites']", "files does not apply"),
    ],
)
def test_a_mistake_is_one_error_that_names_what_there_is(load_text, lines, words):
    with pytest.raises(MatrixError, match=words):
        load_text(HEAD + lines)


def test_an_installed_package_carries_the_suites_inside(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "allranks"
    (package / "suites").mkdir(parents=True)
    monkeypatch.setattr(suite_paths, "__file__", str(package / "matrix" / "suite_paths.py"))
    assert suite_paths.own_folder() == package / "suites"


def test_a_test_of_it_selects_it_though_the_repository_has_no_such_file(load_text, repository):
    matrix = load_text(f"{HEAD}path = 'allranks:collectives'\n[suites.own]\npath = 'suites'")
    assert suites_with_tests(matrix, [TEST]) == ("kit",)
    (repository / "collectives").mkdir()
    assert suites_with_tests(matrix, ["collectives/test_broadcast.py"]) == ("kit",)
