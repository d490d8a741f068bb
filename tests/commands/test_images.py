"""``allranks images``, as far as no daemon is needed."""

import pytest


@pytest.mark.parametrize("option", [["--dry-run"], ["--older-than", "14d"], ["--keep-size", "40GB"]], ids=" ".join)
def test_what_limits_a_removal_is_refused_without_one(allranks, option):
    code, out, err = allranks("images", *option)
    assert (code, out) == (2, "")
    assert "Add --prune" in err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--older-than=14y", "is not a valid age"),
        ("--older-than=14", "is not a valid age"),
        ("--keep-size=40d", "is not a valid size"),
    ],
)
def test_an_age_or_a_size_that_is_none_is_told(allranks, option, said):
    code, _, err = allranks("images", "--prune", option)
    assert code == 2
    assert said in err
