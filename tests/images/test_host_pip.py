import shlex
import sys

import pytest

from allranks.errors import ImageError
from allranks.images import pip_settings, wheels
from allranks.images.host_pip import cause
from allranks.images.wheels import PipRequest, run_pip, without_configuration


def request(tmp_path, *arguments, markers=None):
    return PipRequest(
        arguments=arguments,
        what="It failed.",
        remedy="Do this.",
        folder=tmp_path,
        environ=without_configuration(),
        markers=markers or {},
    )


@pytest.mark.thorough
def test_a_failure_of_pip_is_an_error_with_pips_own_errors(tmp_path, progress):
    with pytest.raises(ImageError) as error:
        run_pip(request(tmp_path, "download", "--no-index", "--dest=x", "nowhere==1"), progress)
    assert error.value.why.startswith("Could not find a version that satisfies the requirement nowhere==1")


def test_output_without_errors_is_the_cause_as_it_is():
    assert cause(["Traceback", "", "KeyError"]) == "Traceback\nKeyError"


def test_the_indented_lines_of_an_error_are_included():
    lines = ["Collecting x", "ERROR: These do not:", "    six (from a)", "    seven", "", "Note: x", "  rest"]
    assert cause(lines) == "These do not:\nsix (from a)\nseven"


@pytest.mark.thorough
def test_markers_are_those_of_the_image_and_not_of_the_host(tmp_path, progress, make_wheel):
    links = tmp_path / "links"
    make_wheel(links, "top", "1.0", requires=['old ; python_version < "3.0"', 'new ; python_version >= "3.0"'])
    make_wheel(links, "old", "1.0")
    make_wheel(links, "new", "1.0")
    arguments = ["download", "--no-index", f"--find-links={links}", f"--dest={tmp_path / 'out'}", "top"]
    markers = {"python_version": "2.7", "python_full_version": "2.7.18"}
    run_pip(request(tmp_path, *arguments, markers=markers), progress)
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "out").iterdir()) == ["old", "top"]


def test_a_module_in_the_working_folder_does_not_shadow_pip(tmp_path, progress, make_wheel):
    (tmp_path / "pip.py").write_text("raise SystemExit(3)")
    links = tmp_path / "links"
    make_wheel(links, "top", "1.0")
    out = tmp_path / "out"
    run_pip(request(tmp_path, "download", "--no-index", f"--find-links={links}", f"--dest={out}", "top"), progress)
    assert [path.name.partition("-")[0] for path in out.iterdir()] == ["top"]


def test_an_environment_without_pip_uses_the_python_of_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(pip_settings.importlib.util, "find_spec", lambda _: None)
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "python3").unlink()
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    assert wheels._python_with_pip() == str(tmp_path / "python3")


def test_no_pip_anywhere_is_an_error_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(pip_settings.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match="Install pip"):
        wheels._python_with_pip()
