import sys

import pytest

from allranks.testing import skips as platform_skips


@pytest.mark.parametrize(("platform", "skipped"), [("win32", True), ("linux", False), ("darwin", False)])
def test_windows_is_skipped(monkeypatch, skip_of, platform, skipped):
    monkeypatch.setattr(sys, "platform", platform)
    if skipped:
        assert skip_of(platform_skips.skip_if_windows).code == 86
    else:
        platform_skips.skip_if_windows.check()


def test_a_module_that_is_not_installed_is_skipped_by_name(skip_of):
    platform_skips.require_imports("json", "os.path").check()
    skip = skip_of(platform_skips.require_imports("json", "no_such_package.part"))
    assert skip.code == 88
    assert "no module named no_such_package" in skip.msg


def test_a_module_that_fails_to_import_is_not_a_skip(tmp_path, monkeypatch):
    (tmp_path / "broken_by_us.py").write_text("raise ImportError('a symbol is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="a symbol is missing"):
        platform_skips.require_imports("broken_by_us").check()


def test_a_condition_is_evaluated_when_the_test_runs(skip_of):
    answers = iter([False, True])
    requirement = platform_skips.skip_when(lambda: next(answers), "the answer is yes")
    requirement.check()
    skip = skip_of(requirement)
    assert (skip.code, skip.msg) == (86, "the answer is yes")


def test_skip_because_always_skips(skip_of):
    skip = skip_of(platform_skips.skip_because("it needs a lab"))
    assert (skip.code, skip.msg) == (86, "it needs a lab")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (platform_skips.require_imports, "names of modules"),
        (lambda: platform_skips.require_imports(len), "names of modules"),
        (lambda: platform_skips.skip_when(True, "so"), "must be a function"),
        (lambda: platform_skips.skip_when(lambda: True, " "), "must be a non-empty string"),
        (lambda: platform_skips.skip_because(len), "must be a non-empty string"),
    ],
)
def test_wrong_arguments_are_an_error_that_shows_a_correct_one(make, words):
    with pytest.raises(TypeError, match=words):
        make()
