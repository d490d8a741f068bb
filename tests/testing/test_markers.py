import inspect
import os
import subprocess
import sys

import pytest

import allranks.testing
from allranks.testing.markers import REQUIREMENT_MARKERS, marker_lines
from allranks.testing.skips import Requirement

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "allranks.testing.fixtures", "-p", "no:hypothesispytest", "--strict-markers")


def is_requirement(value):
    return isinstance(value, Requirement) or (
        inspect.isfunction(value) and inspect.signature(value).return_annotation is Requirement
    )


def test_every_requirement_is_a_marker_of_its_own_name():
    public = {name for name in allranks.testing.__all__ if is_requirement(getattr(allranks.testing, name))}
    assert set(REQUIREMENT_MARKERS) == public


def test_pytest_lists_every_marker_with_its_arguments(pytester):
    result = pytester.runpytest_inprocess(*PLUGIN, "--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.no_process_group: *",
            "@pytest.mark.isolation(kind): *",
            "@pytest.mark.time_limit(seconds): *",
            *(f"@pytest.mark.{name}[:(]*" for name in REQUIREMENT_MARKERS),
        ]
    )
    result.stdout.fnmatch_lines(["@pytest.mark.require_gpus(n, *, on=None): the test needs n GPUs*"])


@pytest.mark.parametrize("optimization", ["", "1", "2"])
def test_markers_are_described_under_every_optimization(optimization):
    """With ``-OO``, functions have no docstrings."""
    code = "from allranks.testing.markers import *; print(*marker_lines(), sep='\\n')"
    environment = {**os.environ, "PYTHONOPTIMIZE": optimization, "PYTHONPATH": os.pathsep.join(sys.path)}
    listed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines() == list(marker_lines())


def test_a_marked_test_is_skipped_before_any_fixture_is_set_up(pytester, cell):
    cell()
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(autouse=True, scope="session")
        def expensive():
            raise AssertionError

        @pytest.mark.require_world_size(2)
        def test_function(): pass

        @pytest.mark.skip_if_odd_world_size
        class TestClass:
            def test_method(self): pass

        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.skip_when(lambda: True, reason="not one"))])
        def test_parameter(n): pass
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(
        ["*too small*world size 1, at least 2 needed", "*even number of ranks: world size 1", "*not one"]
    )


def test_a_module_can_be_marked_and_a_requirement_that_is_met_has_no_effect(pytester, cell):
    cell(WORLD_SIZE=2)
    pytester.makepyfile(
        """
        import pytest
        pytestmark = [pytest.mark.require_world_size(2), pytest.mark.require_gloo]

        def test_it(): pass

        @pytest.mark.skip_because("it is late")
        def test_late(): pass
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize(
    ("marker", "complaint", "usage"),
    [
        ("require_gpus", "missing a required argument: 'n'", "require_gpus(n, *, on=None)"),
        ("require_gpus('2')", "the number of GPUs must be an integer, not '2'", "require_gpus(n, *, on=None)"),
        ("require_gpus(0)", "the number of GPUs must be at least 1, not 0", "require_gpus(n, *, on=None)"),
        ("require_world_size(at_least=2)", "missing a required argument: 'minimum'", "require_world_size(minimum)"),
        ("require_nccl('2.27')", "too many positional arguments", "require_nccl"),
        ("skip_when(True, 'so')", "the condition must be a function", "skip_when(condition, reason)"),
    ],
)
def test_a_wrong_marker_is_an_error_that_shows_the_usage(pytester, cell, marker, complaint, usage):
    cell()
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.{marker}
        @pytest.mark.skip_because("which does not hide it")
        def test_it(): raise AssertionError
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    name = marker.partition("(")[0]
    output = result.stdout.str()
    assert f"@pytest.mark.{name} on " in output
    assert complaint in output
    assert f"Usage: @pytest.mark.{usage}\n" in output
    assert "Traceback" not in output
    assert "markers.py" not in output
