import sys

import pytest

from allranks.agent.rank.imports import ImportWatch, preload

SUITE = """
    import sys
    import torch

    def test_first():
        assert "torch.distributed.tensor" not in sys.modules
        torch.testing.assert_close(torch.ones(1), torch.ones(1))

    def test_second():
        assert "torch.distributed.tensor" in sys.modules
"""


@pytest.mark.thorough
def test_late_imports_of_one_gang_are_preloaded_for_the_next(run_agent):
    agent = run_agent({"test_late.py": SUITE}, isolation="test")
    assert agent.outcomes("test_first") == ("passed", "passed")
    assert agent.outcomes("test_second") == ("passed", "passed"), agent.cases(0)["test_second"].message


def pretend_imports(monkeypatch, *names):
    """Pretend that modules were imported, until the test ends."""
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, sys)


def test_only_harmless_packages_are_reported_in_order(monkeypatch):
    watch = ImportWatch()
    pretend_imports(monkeypatch, "torch.made_up", "made_up", "numpy.made_up")
    assert watch.take() == ("torch.made_up", "numpy.made_up")


def test_an_import_is_reported_once(monkeypatch):
    watch = ImportWatch()
    pretend_imports(monkeypatch, "torch.first")
    watch.take()
    pretend_imports(monkeypatch, "torch.second")
    assert watch.take() == ("torch.second",)
    assert watch.take() == ()


def test_old_imports_are_not_reported_when_the_newest_module_is_removed(monkeypatch):
    pretend_imports(monkeypatch, "torch.newest")
    watch = ImportWatch()
    del sys.modules["torch.newest"]
    pretend_imports(monkeypatch, "torch.first", "torch.second")
    assert set(watch.take()) <= {"torch.first", "torch.second"}


def test_the_names_fit_into_a_pipe(monkeypatch):
    watch = ImportWatch()
    pretend_imports(monkeypatch, *(f"torch.made_up_{number:040}" for number in range(2000)))
    names = watch.take()
    assert 0 < sum(map(len, names)) < 32_000


def test_a_module_that_cannot_be_imported_is_skipped(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.version", raising=False)
    preload(["torch.there_is_no_such_module", "torch.version"])
    assert "torch.version" in sys.modules
