"""All processes of a run collect the same tests under the same ids; differences are errors that name the tests."""

import pytest
from long_lists import quick

from allranks.protocol.records import FullCollection

DRAWN = """
    import random

    import numpy
    import pytest
    import torch

    class Case:
        def __init__(self, name): self.name = name

    NAMES = {"ada", "bea", "cyd", "dan", "eve", "fay"}

    @pytest.mark.parametrize("case", [Case(name) for name in NAMES])
    def test_set(case): pass

    @pytest.mark.parametrize("case", list(map(Case, dict.fromkeys(NAMES))))
    def test_dictionary(case): pass

    @pytest.mark.parametrize("values", [[random.random()], random.sample(range(1000), 3)])
    def test_python(values): pass

    @pytest.mark.parametrize("values", [torch.rand(3), numpy.random.rand(3)])
    def test_arrays(values): pass

    class TestMethods:
        @pytest.mark.parametrize("case", sorted((Case(name) for name in NAMES), key=lambda case: hash(case.name)))
        def test_hash(self, case): pass
"""
FILES = {"test_drawn.py": DRAWN, "test_first.py": "import random\nrandom.random()\ndef test_one(): pass\n"}


def collection_of(run):
    return {
        test: digest for each in run.all(FullCollection) for test, digest in zip(each.tests, each.digests, strict=True)
    }


@pytest.fixture
def collect(run_command):
    def run(files, **changes):
        return collection_of(run_command(files, pytest_args=("--collect-only",), **changes))

    return run


@pytest.mark.thorough
def test_every_process_collects_with_the_runs_seed(collect):
    one, again, other = collect(FILES), collect(FILES), collect(FILES, seed=8)
    assert len(one) == 6 + 6 + 2 + 2 + 6 + 1
    assert one == again
    assert one.keys() == other.keys()
    assert {test for test in one if one[test] != other[test]} >= {
        "suite/test_drawn.py::test_python[values0]",
        "suite/test_drawn.py::test_arrays[values1]",
    }


@pytest.mark.thorough
def test_random_parameters_do_not_depend_on_earlier_files(collect):
    all_files, alone = collect(FILES), collect({"test_drawn.py": DRAWN})
    assert alone == {test: all_files[test] for test in alone}


@pytest.mark.thorough
def test_the_users_hash_seed_is_kept(collect):
    one, two = (collect(FILES, environment={"PYTHONHASHSEED": seed}) for seed in ("1", "2"))
    again = collect(FILES, seed=8, environment={"PYTHONHASHSEED": "1"})
    sets = [test for test in again if "::test_set" in test]
    assert [one[test] for test in sets] == [again[test] for test in sets]
    assert one != two


THREADED = """
    import threading
    import pytest

    threading.Thread(target=threading.Event().wait, daemon=True).start()

    class Case:
        def __init__(self, name): self.name = name

    @pytest.mark.parametrize("case", [Case(name) for name in {SOURCE}])
    def test_set(case): pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "environment", "outcome"),
    quick(
        2,
        [
            ('{"ada", "bea", "cyd", "dan", "eve"}', {}, "passed"),
            ('{"ada", "bea", "cyd", "dan", "eve"}', {"PYTHONHASHSEED": "random"}, "errored"),
            ("__import__('random').sample(range(9999), 5)", {}, "passed"),
            ("__import__('random').SystemRandom().sample(range(9999), 5)", {}, "errored"),
            ("[__import__('os').getpid()] * 5", {}, "errored"),
            ("[__import__('uuid').uuid4() for _ in range(5)]", {}, "passed"),
            ("[__import__('tempfile').gettempdir() + str(__import__('os').getpid())] * 5", {}, "passed"),
        ],
    ),
)
def test_ranks_that_collect_again_have_the_same_parameters_or_fail(run_command, source, environment, outcome):
    run = run_command({"test_threaded.py": THREADED.replace("{SOURCE}", source)}, environment=environment)
    ranks = [run.cases(rank) for rank in range(2)]
    ends = [[cases[f"test_set[case{number}]"] for cases in ranks] for number in range(5)]
    assert outcome in {rank.outcome for end in ends for rank in end}
    bad = [[rank for rank in end if rank.outcome == "errored"] for end in ends if any(rank.is_bad for rank in end)]
    assert all(outcome == "errored" and each for each in bad)
    assert all(
        "its parameter values differ from those in the process that" in rank.message for each in bad for rank in each
    )
