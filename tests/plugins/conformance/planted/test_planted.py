"""``allranks conformance`` finds a planted defect and names its cell; nothing else about the backend is wrong.

``nox -s conformance`` has all of them, on the engines that are here; else one good backend and one bad one.
"""

import json
import os
from pathlib import Path

import pytest

from allranks.cli.main import main
from allranks.plugins.conformance.capabilities import Capability, from_document

BACKENDS = Path(__file__).parent / "backends"
WANTED = os.environ.get("ALLRANKS_CONFORMANCE", "good wrong_sum").split()
"""Names of backends, or ``all``."""

LIMIT = os.environ.get("ALLRANKS_CONFORMANCE_LIMIT", "30")
"""Seconds for a test that does not hang, on a busy machine."""

ENGINES = os.environ.get("ALLRANKS_CONFORMANCE_ENGINES", "process").split()

WORLD_SIZES = "2,4" if WANTED == ["all"] else "2"

CASES = {
    "wrong_sum": ("test_all_reduce and test_sum", {"all_reduce, int32": Capability.WRONG}),
    "lost_dtype": ("test_broadcast and test_every", {"broadcast, float64": Capability.WRONG}),
    "hanging_barrier": ("test_nobody_leaves_before_the_last", {"barrier": Capability.HANGS}),
    "ignored_op": (
        "test_all_reduce and test_product_and_extremes and int32",
        {"all_reduce MAX, int32": Capability.WRONG},
    ),
    "aliased_input": (
        "test_all_gather and (test_input_is_left or test_list_of_views or unequal)",
        {"all_gather": Capability.WRONG},
    ),
    "early_handle": ("test_result_is_there and all_reduce", {"all_reduce, async": Capability.WRONG}),
    "leaking_subgroup": ("test_halves_reduce_apart or test_sum_of_lists", {"all_reduce, sub-group": Capability.WRONG}),
    "swallowed_error": ("list_that_is_too_long", {"all_gather argument checks": Capability.WRONG}),
}
"""By the module of a backend: the tests of the operations that its defect affects, and the cells that it spoils."""

GOOD = "test_broadcast or test_all_gather or (test_barriers and not group)"


def states_of(tmp_path, monkeypatch, module, tests, engine):
    """The exit code of a run, and the state of each cell; of gloo itself without a module."""
    monkeypatch.chdir(BACKENDS)
    backend, imports = ("planted", ["--import", f"planted.{module}"]) if module else ("gloo", [])
    limit = "10" if module == "hanging_barrier" else LIMIT
    where = ["--engine", engine, "--time-limit", limit, "--results", str(tmp_path)]
    code = main(["conformance", "--backend", backend, *imports, "--world-size", WORLD_SIZES, *where, "-k", tests])
    table = from_document(json.loads((tmp_path / "latest" / "conformance.json").read_text()))[backend]
    return code, {key.name: cell.state for key, cell in table.items()}


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


@pytest.mark.parametrize("module", [name for name in CASES if name in WANTED or WANTED == ["all"]])
def test_a_planted_defect_is_named_and_nothing_else(tmp_path, monkeypatch, module, engine):
    tests, wanted = CASES[module]
    code, states = states_of(tmp_path, monkeypatch, module, tests, engine)
    assert {name: state for name, state in states.items() if state.is_bad} == wanted
    assert code == 1


@pytest.mark.skipif("good" not in WANTED and WANTED != ["all"], reason="not asked for")
def test_a_good_backend_works_but_for_what_it_refuses(tmp_path, monkeypatch, engine):
    code, states = states_of(tmp_path, monkeypatch, "good", GOOD, engine)
    refused = {name for name, state in states.items() if state is Capability.UNSUPPORTED}
    assert {name for name, state in states.items() if state.is_bad} == set()
    assert {"all_gather unequal lengths", "all_gather_single stacked", "monitored_barrier"} <= refused
    assert code == 0


@pytest.mark.skipif(WANTED != ["all"], reason="minutes: nox -s conformance")
def test_the_table_of_a_good_backend_is_that_of_gloo_but_for_what_torch_keeps_for_gloo(tmp_path, monkeypatch, engine):
    good, gloo = (states_of(tmp_path, monkeypatch, module, "not timeouts", engine)[1] for module in ("good", None))
    differing = {name for name in good.keys() | gloo.keys() if good.get(name) is not gloo.get(name)}
    assert differing <= {"monitored_barrier", "monitored_barrier refusal"}
