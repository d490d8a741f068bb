import pytest

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.outcomes import SkipKind
from allranks.protocol.skip_codes import SkipCode
from allranks.testing import skips
from allranks.testing.skips import require_gpus, requirements_of, skip_if_small_world_size

pytest_plugins = ["pytester"]

# Each pytest that these tests start would import Hypothesis' plugin, which takes a second.
BARE = ("-p", "no:hypothesispytest")
PLUGIN = ("-p", "allranks.testing.fixtures", *BARE)


def test_a_skip_carries_its_code_and_kind():
    with pytest.raises(EnvironmentSkip) as caught:
        skips.skip(SkipCode.NO_CUDA)
    assert (caught.value.code, caught.value.kind) == (74, SkipKind.HARDWARE)
    assert caught.value.msg == "no CUDA device is visible"


def test_a_detail_follows_the_reason():
    assert EnvironmentSkip(SkipCode.NO_NCCL, "a CPU wheel").msg == "this torch is built without NCCL: a CPU wheel"


def test_the_generic_code_has_only_the_detail_as_its_reason():
    assert EnvironmentSkip(SkipCode.GENERIC, "gloo has no such thing").msg == "gloo has no such thing"


def test_a_decorated_test_runs_where_the_requirement_is_met(cell):
    cell(WORLD_SIZE=2)

    @skip_if_small_world_size(2)
    def double(number, *, times=2):
        return number * times

    assert double(4, times=3) == 12


def test_a_decorated_test_skips_when_it_is_called_and_not_before(cell):
    cell(WORLD_SIZE=1)

    @skip_if_small_world_size(2)
    def never():
        raise AssertionError

    with pytest.raises(EnvironmentSkip):
        never()


def test_requirements_are_checked_from_the_outside_in():
    outer, inner = skip_if_small_world_size(2), require_gpus(1)
    assert requirements_of(outer(inner(lambda: None))) == (outer, inner)


@pytest.mark.parametrize("thing", [2, "test_it", None, object()])
def test_only_tests_can_be_decorated(thing):
    with pytest.raises(TypeError, match="can only decorate a test function or class"):
        require_gpus(1)(thing)


def test_all_tests_of_a_decorated_class_are_guarded(cell):
    cell(WORLD_SIZE=1)

    class Base:
        def test_inherited(self): ...

        def helper(self):
            return 3

    @skip_if_small_world_size(2)
    class TestThing(Base):
        def test_own(self): ...

    thing = TestThing()
    for name in ("test_own", "test_inherited"):
        with pytest.raises(EnvironmentSkip):
            getattr(thing, name)()
    assert thing.helper() == 3
    Base().test_inherited()


def test_requirements_of_a_class_are_kept_outermost_first():
    outer, inner = skip_if_small_world_size(2), require_gpus(1)
    assert requirements_of(outer(inner(type("TestThing", (), {})))) == (outer, inner)


CLASSES = """
    import unittest
    import pytest
    from allranks.testing import require_world_size

    @require_world_size(2)
    class TestPlain:
        def test_it(self):
            raise AssertionError

    @require_world_size(2)
    class TestCase(unittest.TestCase):
        def test_it(self):
            raise AssertionError

    class TestMethods(unittest.TestCase):
        @require_world_size(2)
        def test_it(self):
            raise AssertionError

        def test_inside(self):
            require_world_size(2).check()
            raise AssertionError

        def test_other(self):
            pass
"""


@pytest.mark.parametrize("options", [BARE, PLUGIN], ids=["without plugin", "with plugin"])
def test_classes_and_test_cases_are_skipped_under_any_pytest(pytester, cell, options):
    cell()
    pytester.makepyfile(test_suite=CLASSES)
    result = pytester.runpytest_inprocess("-rs", *options)
    result.assert_outcomes(skipped=4, passed=1)
    result.stdout.fnmatch_lines(["SKIPPED * the world is too small for this test: world size 1, at least 2 needed"])


@pytest.mark.parametrize("base", ["", "unittest.TestCase"])
def test_the_plugin_skips_a_class_before_any_setup(pytester, cell, base):
    cell()
    pytester.makepyfile(
        f"""
        import unittest
        import pytest
        from allranks.testing import require_world_size

        @require_world_size(2)
        class TestBase({base}):
            @classmethod
            def setUpClass(cls): raise AssertionError
            setup_class = setUpClass

        class TestDerived(TestBase):
            def test_own(self): raise AssertionError

            class TestInner:
                def test_inner(self): raise AssertionError
        """
    )
    reports = pytester.inline_run(*PLUGIN).getreports("pytest_runtest_logreport")
    assert {(report.when, report.outcome) for report in reports} == {("setup", "skipped"), ("teardown", "passed")}


SUITE = """
    from allranks.testing import require_gpus, skip_if_small_world_size

    @skip_if_small_world_size(2)
    def test_decorated():
        raise AssertionError

    def test_inside():
        skip_if_small_world_size(2).check()
        raise AssertionError

    class TestMethods:
        @skip_if_small_world_size(2)
        def test_method(self):
            raise AssertionError
"""


@pytest.mark.parametrize("options", [BARE, PLUGIN], ids=["without plugin", "with plugin"])
def test_a_plain_pytest_reports_the_reason_at_the_test(pytester, cell, options):
    cell()
    pytester.makepyfile(test_suite=SUITE)
    result = pytester.runpytest_inprocess("-rs", *options)
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["SKIPPED [[]1] test_suite.py:3: the world is too small for this test: world size 1*"])


def test_the_plugin_skips_a_decorated_test_before_its_fixtures_are_set_up(pytester, cell):
    cell()
    pytester.makepyfile(
        """
        import pytest
        from allranks.testing import skip_if_small_world_size

        @pytest.fixture
        def expensive():
            raise AssertionError

        @skip_if_small_world_size(2)
        def test_it(expensive):
            pass
        """
    )
    reports = pytester.inline_run(*PLUGIN).getreports("pytest_runtest_logreport")
    assert [(report.when, report.outcome) for report in reports] == [("setup", "skipped"), ("teardown", "passed")]
