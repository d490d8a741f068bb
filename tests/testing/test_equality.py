# ruff: noqa: PT009 - this tests the assertions of unittest
import pytest
import torch

from allranks.testing import TensorEquality

NAN = float("nan")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.ones(3), torch.ones(3)),
        (torch.ones(3), torch.ones(3) + 1e-7),
        (torch.tensor([NAN]), torch.tensor([NAN])),
        (torch.tensor([1, 2]), [1, 2]),
        (2.0, torch.tensor(2.0)),
        ({"a": [torch.ones(1)]}, {"a": [torch.ones(1)]}),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
        ("words", "words"),
        ([1, 2], [1, 2]),
    ],
    ids=str,
)
def test_what_is_equal(first, second):
    case = TensorEquality()
    case.assertEqual(first, second)
    with pytest.raises(AssertionError):
        case.assertNotEqual(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.ones(3), torch.zeros(3)),
        (torch.ones(3), torch.ones(2)),
        (torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (torch.ones(1), "words"),
        ([torch.ones(1)], [torch.ones(1), torch.ones(1)]),
        ({"a": torch.ones(1)}, {"b": torch.ones(1)}),
        (1, 2),
    ],
    ids=str,
)
def test_what_is_not_equal(first, second):
    case = TensorEquality()
    case.assertNotEqual(first, second)
    with pytest.raises(AssertionError):
        case.assertEqual(first, second)


def test_tolerances_can_be_given():
    TensorEquality().assertEqual(torch.ones(1), torch.ones(1) * 1.5, atol=1, rtol=0)


def test_own_words_are_in_the_error():
    with pytest.raises(AssertionError, match="after the second step"):
        TensorEquality().assertEqual(torch.ones(1), torch.zeros(1), "after the second step")
