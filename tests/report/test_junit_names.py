"""Names of testcases that no client takes for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.report import junit_case
from allranks.report.judged import JobSummary
from allranks.report.junit_case import NAME_LIMIT, NAMELESS, JUnitForm, unique_names
from allranks.report.results import TestVerdict, Verdict, VerdictKind, VerdictRule

JOB = JobSummary(cell="gloo-w2-g0-env", suite="s")
PASSED = Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED)
USUAL = JUnitForm()
HAS_NO_NAME = [NAMELESS, f"{NAMELESS} #2"]


def names(*tests: tuple[str, str], form: JUnitForm = USUAL) -> list[tuple[str, str]]:
    verdicts = [TestVerdict(nodeid="n", classname=each, name=name, verdict=PASSED) for each, name in tests]
    return list(unique_names(JOB, verdicts, form))


def javascript_hash(text: str) -> int:
    number = 0
    units = text.encode("utf-16-le")
    for low, high in zip(units[::2], units[1::2], strict=True):
        number = (number * 31 + low + 256 * high) % 2**32
    return number


@pytest.mark.parametrize(
    ("given_names", "shown_names"),
    [
        (["x", "x", "x"], ["x", "x #2", "x #3"]),
        (["x", "x", "x #2"], ["x", "x #3", "x #2"]),
        (["x ", " x", "x"], ["x ", " x #2", "x #3"]),
        (["a\nb", "a b"], ["a\nb", "a b #2"]),
        (["é", "e\u0301"], ["é", "e\u0301 #2"]),
        (["[Aa]", "[BB]"], ["[Aa]", "[BB] #2"]),
        (["", " "], HAS_NO_NAME),
        (["\x1b[31mx", "x"], ["x", "x #2"]),
        (["x", "X"], ["x", "X"]),
    ],
    ids=str,
)
def test_the_later_of_two_that_a_client_takes_for_one_gets_a_number(given_names: list[str], shown_names: list[str]):
    assert [name for _, name in names(*(("c", name) for name in given_names))] == shown_names


@pytest.mark.parametrize(
    "alike",
    [lambda number: f"x{f'{number:b}'.translate({48: ' ', 49: chr(9)})}y", lambda _: "xy"],
    ids=["blanks", "equal"],
)
def test_each_of_thousands_of_names_that_clients_take_for_one_costs_three_looks(alike, monkeypatch):
    looks = []
    identities = junit_case._Classes.identities
    monkeypatch.setattr(junit_case._Classes, "identities", lambda *name: looks.append(name) or identities(*name))
    told = [name for _, name in names(*(("c", alike(number)) for number in range(1, 2001)))]
    assert len(set(told)) == 2000
    assert told[-1].endswith(" #2000")
    assert len(looks) == 3 * 2000 - 1


def test_full_names_that_are_alike_stay_apart():
    assert names(("a.b", "c"), ("a", "b.c"), ("x", "c")) == [("a.b", "c"), ("a", "b.c #2"), ("x", "c")]


def test_cell_and_suite_stand_before_class_names_where_that_is_asked_for():
    form = JUnitForm(classname="cell")
    assert names(("a.b", "c"), ("", "m"), form=form) == [("gloo-w2-g0-env.s.a.b", "c"), ("gloo-w2-g0-env.s", "m")]


def test_a_module_that_was_skipped_as_a_whole_has_no_class_name():
    assert names(("", "t.test_m")) == [("", "t.test_m")]


def test_a_long_name_keeps_both_ends_and_its_neighbour():
    long = "a" * 50_000 + "z"
    (_, one), (_, two) = names(("c", long), ("c", long))
    assert len(one) < NAME_LIMIT + 100
    assert (one[:5], one[-5:], two) == ("aaaaa", "aaaaz", f"{one} #2")


@given(st.lists(st.tuples(st.sampled_from(["", "c", "c.d"]), st.text(max_size=6)), max_size=20))
def test_no_two_names_have_one_hash_or_differ_by_white_space_alone(tests: list[tuple[str, str]]):
    found = names(*tests)
    assert len({javascript_hash(name + classname) for classname, name in found}) == len(tests)
    assert len({" ".join(f"{classname}.{name}".split()) for classname, name in found}) == len(tests)


@given(st.text(min_size=1, max_size=400))
def test_the_hash_is_that_of_javascript(text: str):
    from allranks.report.junit_case import _hash

    clean = text.encode("utf-16-le", "replace").decode("utf-16-le")
    assert _hash(clean) % 2**32 == javascript_hash(clean)
