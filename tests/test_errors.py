import pytest

from allranks import errors
from allranks.errors import AllranksError, ExitCode, MatrixError, UsageError, strongest

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AllranksError)]


def test_text_is_the_sentences_that_there_are_one_a_line():
    assert AllranksError("What.", why="Why.", remedy="Remedy.").text == "What.\nWhy.\nRemedy."
    assert AllranksError("What.", remedy="Remedy.").text == str(AllranksError("What.", remedy="Remedy."))
    assert AllranksError("What.", remedy="Remedy.").text == "What.\nRemedy."


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_failure_has_its_exit_code_and_its_sentence(kind):
    wanted = ExitCode.USAGE if kind in (UsageError, MatrixError) else ExitCode.INFRASTRUCTURE
    assert kind.exit_code is wanted
    assert kind.__doc__


def test_the_order_of_exit_codes_is_that_of_the_design():
    order = [130, 2, 4, 3, 1, 5, 0]
    for place, code in enumerate(order):
        assert strongest({ExitCode(member) for member in order[place:]}) == code


def test_no_exit_code_is_good():
    assert strongest(set()) is ExitCode.OK


def test_no_cause_gives_orders_to_the_terminal():
    assert AllranksError("It broke.", why="\x1b[2J\x9bm \x1b[31mred\x1b[0m").terminal_text == (
        "allranks: error: It broke.\n  �m \x1b[31mred\x1b[0m"
    )
