import pytest

from allranks.testing.shared_files import GangFolder

ODD = [
    "suite/test_it.py::test_it[../../..]",
    "suite/test_it.py::test_it[/etc/passwd]",
    "suite/test_it.py::test_it[\0\n\t ]",
    "suite/test_it.py::test_it[" + "ü" * 5000 + "]",
    "suite/test_\udcff.py::test_it[\ud800]",
    "",
    "..",
    "::",
]


@pytest.mark.parametrize("nodeid", ODD, ids=range(len(ODD)))
def test_any_node_id_has_its_own_folder(tmp_path, nodeid):
    gang = GangFolder(tmp_path)
    folder = gang.test_folder(nodeid, 1)
    assert folder.files.is_dir()
    assert folder.path.resolve().parent == tmp_path / "tests"
    assert len({gang.test_folder(other, 1).path for other in ODD}) == len(ODD)


def test_a_repeated_test_has_a_different_folder(tmp_path):
    gang = GangFolder(tmp_path)
    assert gang.test_folder("a::b", 1) == gang.test_folder("a::b", 1) != gang.test_folder("a::b", 2)


def test_tests_with_the_same_name_in_two_files_have_two_folders(tmp_path):
    gang = GangFolder(tmp_path)
    assert gang.test_folder("a.py::test_it", 1) != gang.test_folder("b.py::test_it", 1)


def test_the_folders_of_a_gang_are_separate(tmp_path):
    gang = GangFolder(tmp_path)
    test = gang.test_folder("a", 1)
    assert len({gang.files, test.files, test.barrier, test.published}) == 4
