import pytest
import torch
import torch.distributed as dist

from allranks.harness.outcome import SkipKind
from allranks.testing import skips
from allranks.testing.skipcodes import SkipCode
from allranks.testing.skips import EnvironmentSkip, requirements_of

pytest_plugins = ["pytester"]

# Hypothesis' own plugin would be imported again for each pytest that these tests start, a second each time.
BARE = ("-p", "no:hypothesispytest")
PLUGIN = ("-p", "allranks.testing.fixtures", *BARE)


def skip_of(requirement):
    with pytest.raises(EnvironmentSkip) as caught:
        requirement.check()
    return caught.value


@pytest.fixture
def cell(monkeypatch):
    def set_cell(**variables):
        for name in ("RANK", "WORLD_SIZE", "BACKEND"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return set_cell


@pytest.fixture
def gpus(monkeypatch):
    def set_gpus(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_gpus


def test_a_skip_carries_its_code_and_kind():
    with pytest.raises(EnvironmentSkip) as caught:
        skips.skip(SkipCode.NO_CUDA)
    assert (caught.value.code, caught.value.kind) == (74, SkipKind.HARDWARE)
    assert caught.value.msg == "no CUDA device is visible"


def test_a_detail_follows_the_reason():
    assert EnvironmentSkip(SkipCode.NO_NCCL, "a CPU wheel").msg == "this torch is built without NCCL: a CPU wheel"


def test_a_detail_is_the_whole_reason_of_the_generic_code():
    assert EnvironmentSkip(SkipCode.GENERIC, "gloo has no such thing").msg == "gloo has no such thing"


@pytest.mark.parametrize(
    ("visible", "needed", "code"),
    [(0, 1, 74), (0, 4, 74), (1, 2, 77), (2, 3, 80), (3, 4, 81), (7, 8, 85), (8, 9, 85)],
)
def test_too_few_gpus_are_a_hardware_skip_with_torchs_code(gpus, visible, needed, code):
    gpus(visible)
    skip = skip_of(skips.require_gpus(needed))
    assert (skip.code, skip.kind) == (code, SkipKind.HARDWARE)


@pytest.mark.parametrize(("visible", "needed"), [(1, 1), (2, 2), (8, 3)])
def test_enough_gpus_are_no_skip(gpus, visible, needed):
    gpus(visible)
    skips.require_gpus(needed).check()


def test_the_reason_says_how_many_gpus_there_are(gpus):
    gpus(1)
    assert skip_of(skips.require_gpus(4)).msg == "fewer than 4 GPUs are visible: 1 of 4"


def test_a_world_below_the_minimum_is_skipped(cell):
    cell(WORLD_SIZE=2)
    assert skip_of(skips.skip_if_small_world_size(3)).code == 73
    skips.skip_if_small_world_size(2).check()


def test_a_plain_pytest_is_a_world_of_one(cell):
    cell()
    assert "1 of at least 2 ranks" in skip_of(skips.skip_if_small_world_size(2)).msg


@pytest.mark.parametrize(("world_size", "skipped"), [(1, True), (2, False), (3, True), (4, False)])
def test_an_odd_world_is_skipped(cell, world_size, skipped):
    cell(WORLD_SIZE=world_size)
    if skipped:
        assert skip_of(skips.skip_if_odd_world_size).code == 87
    else:
        skips.skip_if_odd_world_size.check()


def test_a_backend_that_torch_lacks_is_skipped(monkeypatch):
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    skips.require_backend_available("gloo").check()
    skips.require_gloo.check()
    skip = skip_of(skips.require_backend_available("ucc"))
    assert (skip.code, skip.kind) == (72, SkipKind.ENVIRONMENT)
    assert "ucc" in skip.msg


def test_the_cells_backend_must_be_one_of_those_the_test_is_about(cell):
    cell(BACKEND="gloo")
    skips.require_backend_in("nccl", "gloo").check()
    skip = skip_of(skips.require_backend_in("nccl", "mpi"))
    assert skip.code == 72
    assert "nccl and mpi" in skip.msg
    assert "gloo" in skip.msg


@pytest.mark.parametrize("available", [True, False])
def test_a_torch_without_nccl_is_skipped(monkeypatch, available):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: available)
    if available:
        skips.require_nccl.check()
    else:
        assert skip_of(skips.require_nccl).code == 76


def test_an_operation_that_the_backend_lacks_is_skipped_by_name(cell):
    requirement = skips.skip_unsupported("gather of ghosts", on=["gloo"])
    cell(BACKEND="nccl")
    requirement.check()
    cell(BACKEND="gloo")
    skip = skip_of(requirement)
    assert (skip.code, skip.msg) == (86, "gloo has no gather of ghosts")


def test_a_decorated_test_runs_where_the_requirement_is_met(cell):
    cell(WORLD_SIZE=2)

    @skips.skip_if_small_world_size(2)
    def double(number, *, times=2):
        return number * times

    assert double(4, times=3) == 12


def test_a_decorated_test_skips_when_it_is_called_and_not_before(cell):
    cell(WORLD_SIZE=1)

    @skips.skip_if_small_world_size(2)
    def never():
        raise AssertionError

    with pytest.raises(EnvironmentSkip):
        never()


def test_requirements_are_looked_at_from_the_outermost_in():
    outer, inner = skips.skip_if_small_world_size(2), skips.require_gpus(1)
    assert requirements_of(outer(inner(lambda: None))) == (outer, inner)


def test_a_class_cannot_be_decorated():
    with pytest.raises(TypeError, match="TestThing is a class"):
        skips.require_nccl(type("TestThing", (), {}))


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
    result.stdout.fnmatch_lines(["SKIPPED [[]1] test_suite.py:3: the world is too small for this test: 1 of*"])


def test_the_plugin_skips_a_decorated_test_before_its_fixtures_are_made(pytester, cell):
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
