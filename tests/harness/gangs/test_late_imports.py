import sys

from allranks.harness.gangs.late_imports import imported_late, preload

SUITE = """
    import sys
    import torch

    def test_first():
        assert "torch.distributed.tensor" not in sys.modules
        torch.testing.assert_close(torch.ones(1), torch.ones(1))

    def test_second():
        assert "torch.distributed.tensor" in sys.modules
"""


def test_what_one_gang_imports_late_is_there_for_the_next(run_agent):
    agent = run_agent({"test_late.py": SUITE}, isolation="test")
    assert agent.outcomes("test_first") == ("passed", "passed")
    assert agent.outcomes("test_second") == ("passed", "passed"), agent.cases(0)["test_second"].message


def test_only_packages_whose_import_is_harmless_are_named():
    before = set(sys.modules) - {"torch.nn", "json", "torch.optim"}
    assert imported_late(before) == ("torch.nn", "torch.optim")


def test_the_names_fit_into_a_pipe(monkeypatch):
    for number in range(2000):
        monkeypatch.setitem(sys.modules, f"torch.made_up_{number:040}", sys)
    names = imported_late(())
    assert sum(map(len, names)) < 32_000


def test_a_module_that_cannot_be_imported_is_left_alone():
    preload(["torch.there_is_no_such_module", "json"])
