import pytest

from allranks.schedule.coverage import Wishes, wishes_of


@pytest.mark.parametrize(
    ("arguments", "wishes"),
    [
        ("--cov=a", Wishes()),
        ("--cov-report=xml", Wishes(reports=(("xml", ""),))),
        ("--cov-report xml:deep/c.xml", Wishes(reports=(("xml", "deep/c.xml"),))),
        ("--cov-report=html:h --cov-report=json", Wishes(reports=(("html", "h"), ("json", "")))),
        ("--cov-report=term-missing:skip-covered", Wishes(show_missing=True, skip_covered=True)),
        ("--cov-config=own.rc -k xml", Wishes(config="own.rc")),
        ("--cov-config own.rc", Wishes(config="own.rc")),
    ],
)
def test_what_arguments_ask_for(arguments, wishes):
    assert wishes_of(["--cov", *arguments.split()]) == wishes
