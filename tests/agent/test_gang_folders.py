"""The shared folder of a gang is removed with the gang, whatever its tests did in it."""

import pytest

SUITE = """
    import os
    import signal
    import subprocess
    import sys
    import time
    from pathlib import Path

    import pytest

    SHARED = Path(os.environ.get("ALLRANKS_SHARED", "."))

    @pytest.fixture(autouse=True)
    def folder(rank):
        own = Path(os.environ["ALLRANKS_SHARED"])
        assert [path.name for path in own.parent.iterdir()] == [own.name]
        mine = own / f"rank-{rank}"
        mine.mkdir()
        (mine / "checkpoint").write_bytes(bytes(1 << 20))
        return mine

    def test_passes(folder):
        pass

    def test_fails(folder):
        assert False

    def test_dies(folder, rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    @pytest.mark.time_limit(2)
    def test_hangs(folder):
        time.sleep(600)

    def test_skips(folder):
        pytest.skip("here")

    def test_closes_its_folder(folder):
        (folder / "closed").mkdir()
        (folder / "closed" / "file").touch()
        (folder / "closed").chmod(0)

    def test_nests_folders(folder):
        os.chdir(folder)
        for _ in range(1500):
            os.mkdir("deeper")
            os.chdir("deeper")

    def test_links_elsewhere(folder):
        (folder / "link").symlink_to(folder.parent.parent)

    WRITER = "import sys, itertools, pathlib\\nfor n in itertools.count(): pathlib.Path(sys.argv[1], str(n)).touch()"

    def test_leaves_a_process_that_writes(folder):
        subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], start_new_session=True)

    def test_removes_its_folder(folder, rank):
        (folder / "checkpoint").unlink()
        folder.rmdir()

    def test_last(folder):
        pass
"""

FAIL = ("test_fails", "test_dies", "test_hangs")
PASS = (
    "test_passes",
    "test_closes_its_folder",
    "test_nests_folders",
    "test_links_elsewhere",
    "test_leaves_a_process_that_writes",
    "test_removes_its_folder",
    "test_last",
)


@pytest.fixture(scope="module")
def gangs(run_once):
    return run_once("folders", {"test_folders.py": SUITE}, isolation="test", init_method="file")


@pytest.mark.parametrize("test", PASS)
def test_no_test_finds_the_folder_of_an_earlier_gang(gangs, test):
    case = gangs.cases(0)[test]
    assert case.outcome == "passed", case.message


@pytest.mark.parametrize("test", FAIL)
def test_a_test_fails_for_no_other_reason(gangs, test):
    assert all("gang-" not in gangs.cases(rank)[test].message for rank in range(2))


def test_nothing_of_any_gang_is_left_at_the_end(gangs):
    assert len(gangs.gangs()) == len(PASS) + len(FAIL) + 1
    assert [path.name for path in (gangs.folder / "shared").iterdir()] == []


KEPT = """
    import os
    from pathlib import Path

    def test_first():
        Path(os.environ["ALLRANKS_SHARED"], "for_the_second").touch()

    def test_second():
        assert Path(os.environ["ALLRANKS_SHARED"], "for_the_second").exists()
"""


def test_a_gang_that_is_kept_keeps_its_folder(run_agent):
    agent = run_agent({"test_kept.py": KEPT})
    assert len(agent.gangs()) == 1
    assert agent.outcomes("test_second") == ("passed", "passed")
    assert list((agent.folder / "shared").iterdir()) == []
