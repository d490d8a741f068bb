import pytest

from gpu_acceptance.verdict import Verdict


@pytest.mark.parametrize("output", [{"checks": 0, "text": "all is well"}, {"checks": 3, "text": ""}])
def test_a_part_that_has_checked_nothing_or_says_nothing_is_not_proved(output):
    with pytest.raises(ValueError, match="checked nothing"):
        Verdict(part="p", outcome="proved", pretended=False, **output)


def test_a_pretended_verdict_says_so_in_its_one_line():
    real = Verdict(part="p", outcome="proved", text="two\nlines", checks=1, seconds=1.23, pretended=False)
    pretended = Verdict(part="p", outcome="proved", text="t", checks=1, pretended=True)
    assert real.line == "proved: p (1.2 s): two lines"
    assert pretended.line.startswith("PRETENDED, proved: p")
