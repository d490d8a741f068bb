"""The verdict rules in docs/verdicts.md are those of the code."""

import re
from itertools import product
from pathlib import Path

from allranks.report.judge import rules
from allranks.report.judge.attempts import AFTER, State
from allranks.report.results import VerdictRule

PAGE = (Path(__file__).parents[3] / "docs" / "verdicts.md").read_text(encoding="utf-8")
_RULE = re.compile(r"^(\d+)\. (.*?)(?=\n\n|\n\d+\. |\Z)", re.MULTILINE | re.DOTALL)


def listed(text: str) -> list[tuple[int, str]]:
    """The numbered rules of a text, without its markup."""
    return [(int(number), " ".join(re.sub("[*`]", "", rule).split())) for number, rule in _RULE.findall(text)]


def test_the_page_lists_the_rules_of_the_module():
    assert listed(PAGE) == listed(rules.__doc__ or "")
    assert [number for number, _ in listed(PAGE)] == list(range(1, 15))


def test_the_numbers_of_the_first_rules_are_those_in_reports():
    names = ["unaccounted", "primary failure", "ranks disagree", "skipped", "passed", "job"]
    assert [rule.name.lower().replace("_", " ") for rule in VerdictRule] == names
    titles = [text.partition(".")[0] for _, text in listed(PAGE)[:6]]
    assert titles == ["Unaccounted", "Primary failure", "Ranks disagree", "Skipped", "Passed", "Errors of jobs"]


def test_the_page_has_the_table_of_attempts():
    rows = [
        re.findall(r"[a-z ]*[a-z]", line) for line in PAGE.splitlines() if line.startswith("|") and "-|-" not in line
    ]
    (_, *heads), *body = [[cell.strip() for cell in row] for row in rows]
    found = {(before, new): after for before, *afters in body for new, after in zip(heads, afters, strict=True)}
    assert found == {(before.value, new.value): AFTER[before][new].value for before, new in product(State, State)}
