import pytest

from allranks.runner.combined_coverage import CoverageOptions, parse_options


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("--cov=a", CoverageOptions()),
        ("--cov-report=xml", CoverageOptions(reports=(("xml", ""),))),
        ("--cov-report xml:deep/c.xml", CoverageOptions(reports=(("xml", "deep/c.xml"),))),
        ("--cov-report=html:h --cov-report=json", CoverageOptions(reports=(("html", "h"), ("json", "")))),
        ("--cov-report=term-missing:skip-covered", CoverageOptions(show_missing=True, skip_covered=True)),
        ("--cov-config=own.rc -k xml", CoverageOptions(config="own.rc")),
        ("--cov-config own.rc", CoverageOptions(config="own.rc")),
    ],
)
def test_options_are_parsed(arguments, options):
    assert parse_options(["--cov", *arguments.split()]) == options
