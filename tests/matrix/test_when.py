import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix_strategies import VERSIONS, condition_texts, points
from packaging.version import Version

from allranks.matrix.axes import AXES, AxisValue, comparable
from allranks.matrix.when import ConditionError, parse_condition

POINT: dict[str, AxisValue] = {"backend": "nccl", "world_size": 4, "gpu_count": 2, "init_method": "env", "nodes": 1}
POINT |= {"torch": ""}


class AsPackagingHasIt:
    """A version that can be compared with text, like ``packaging.version``."""

    def __init__(self, text):
        self._version = Version(text)

    def __eq__(self, other):
        return self._version == Version(other)

    def __lt__(self, other):
        return self._version < Version(other)

    def __le__(self, other):
        return self._version <= Version(other)

    def __gt__(self, other):
        return self._version > Version(other)

    def __ge__(self, other):
        return self._version >= Version(other)

    __hash__ = None


@given(condition_texts(), points())
def test_a_condition_means_what_python_means_by_the_same_text(text, point):
    values = {**point, "torch": AsPackagingHasIt(point["torch"])}
    assert parse_condition(text).holds(point) == bool(eval(text, {}, values))  # noqa: S307 -- the oracle


@given(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS))
def test_versions_are_ordered_as_packaging_orders_them(one, other):
    keys = [comparable("torch", text) for text in (one, other)]
    assert (keys[0] < keys[1]) == (Version(one) < Version(other))
    assert (keys[0] == keys[1]) == (Version(one) == Version(other))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("torch >= '2.14'", True),
        ("torch >= '2.9'", True),
        ("'2.9' < torch < '2.15'", True),
        ("torch == '2.14.1'", True),
        ("torch in ['2.13.0', '2.14.1.0']", True),
        ("torch > '2.14.1'", False),
        ("torch < '2.9.1'", False),
    ],
)
def test_versions_are_compared_as_versions_and_not_as_text(text, holds):
    assert parse_condition(text).holds({**POINT, "torch": "2.14.1"}) is holds


@given(condition_texts())
def test_the_names_of_a_condition_are_the_axes_in_its_text(text):
    words = set(text.replace("(", " ").replace(")", " ").split())
    assert parse_condition(text).names == tuple(axis for axis in AXES if axis in words)


@pytest.mark.parametrize(
    "text",
    [
        "backend == 'nccl' and gpu_count < world_size",
        "'nccl' == backend",
        "2 < world_size <= 4",
        "0 < gpu_count < world_size",
        "world_size in (2, 4) and backend not in ['gloo']",
        "not (nodes > 1 or init_method != 'env')",
        "gpu_count > -1",
        "backend == 'nccl'\n  and world_size == 4\n",
        "  world_size == 4",
        "not " * 48 + "nodes == 1",
    ],
)
def test_condition_holds_at_a_point_that_it_describes(text):
    assert parse_condition(text).holds(POINT)


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("backnd == 'nccl'", "'backnd', which is not an axis", "Did you mean 'backend'?"),
        ("backend == nccl", "'nccl', which is not an axis", "in quotes"),
        ("backend == 1", "compares backend, a name, with 1", "backend == 'nccl'"),
        ("world_size == '2'", "compares world_size, a whole number, with '2'", "Write world_size == 2."),
        ("world_size == 'two'", "a whole number, with 'two'", "Write world_size == 2."),
        ("world_size == '123456789'", "with '123456789'", "Write world_size == 123456789."),
        ("world_size == '1234567890'", "with '1234567890'", "Write world_size == 2."),
        ("world_size in [2, '4']", "a whole number, with '4'", "world_size == 4"),
        ("backend == world_size", "compares backend (a name) with world_size (a whole number)", "same kind"),
        ("backend < 'nccl'", "uses < on backend, whose values have no order", "=="),
        ("init_method >= backend", "whose values have no order", "=="),
        ("torch >= '2.x'", "compares torch with '2.x', which is not a version", "torch >= '2.14.1'"),
        ("torch >= 2", "compares torch, a version, with 2", "'2.14.1'"),
        ("torch >= 2.14", "compares torch, a version, with 2.14", "'2.14.1'"),
        ("torch == backend", "compares torch (a version) with backend (a name)", "same kind"),
        ("world_size == world_size", "compares world_size with itself", "another axis"),
        ("1 == 1", "compares two literals", "must be an axis"),
        ("backend", "has the axis backend without a comparison", "backend == 'nccl'"),
        ("True", "has 'True'", "compares axes"),
        ("2 in [2]", "'in', but not between an axis and a list", "world_size in [2, 4]"),
        ("'nccl' in backend", "'in', but not", "world_size in [2, 4]"),
        ("backend in 'nccl'", "'in', but not", "world_size in [2, 4]"),
        ("world_size in []", "'in', but not", "world_size in [2, 4]"),
        ("world_size in [gpu_count]", "the axis gpu_count inside a list", "only contain literals"),
        ("world_size == [2]", "compares with a list", "world_size in [2, 4]"),
        ("world_size == 2.0", "compares world_size, a whole number, with 2.0", "world_size == 2"),
        ("world_size == None", "a whole number, with None", "world_size == 2"),
        ("world_size == True", "a whole number, with true", "world_size == 2"),
        ("world_size is 2", "compares with 'is'", "=="),
        ("backend = 'nccl'", "cannot be read", "compares axes"),
        ("backend == 'nccl' && nodes == 1", "cannot be read", "compares axes"),
        ("", "cannot be read", "compares axes"),
        ("\0", "cannot be read", "compares axes"),
        ("__import__('os').system('true')", "has \"__import__('os').system('true')\"", "compares axes"),
        ("backend.upper() == 'NCCL'", "has 'backend.upper()'", "compares axes"),
        ("backend.name == 'nccl'", "has 'backend.name'", "compares axes"),
        ("world_size + 1 == 2", "has 'world_size + 1'", "compares axes"),
        ("world_size == -gpu_count", "has '-gpu_count'", "compares axes"),
        ("backend[0] == 'n'", "has 'backend[0]'", "compares axes"),
        ("f'{backend}' == 'nccl'", "has ", "compares axes"),
        ("(world_size := 2) == 2", "has '(world_size := 2)'", "compares axes"),
        ("lambda: True", "has 'lambda: True'", "compares axes"),
        ("[world_size for world_size in [1]] == 1", "not a comparison of an axis", "compares axes"),
        ("not " * 50 + "nodes == 1", "nested more than 50 levels deep", "several rules"),
        ("-" * 900 + "1 == nodes", "nested more than 50 levels deep", "several rules"),
        ("world_size == -True", "has '-True'", "compares axes"),
        ("nodes == 1 or " * 1000 + "nodes == 1", "longer than 10000 characters", "several rules"),
        ("(" * 500 + "nodes == 1" + ")" * 500, "cannot be read", "compares axes"),
    ],
)
def test_refused_condition_says_what_is_wrong_and_what_is_right(text, what, remedy):
    with pytest.raises(ConditionError) as caught:
        parse_condition(text)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_condition_with_a_bad_escape_is_read_without_a_warning():
    assert not parse_condition(r"backend == '\d'").holds(POINT)


def test_the_values_that_axes_are_compared_with_for_equality_are_known():
    condition = parse_condition("not (2 == world_size or backend != 'gloo') and nodes in [1, 3] and gpu_count > 7")
    assert condition.literals == (("world_size", 2), ("backend", "gloo"), ("nodes", 1), ("nodes", 3))
