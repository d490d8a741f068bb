"""Rank 1 fails with a message of several lines that look like the terminal's, and like a report's."""

TRUTH = {"tests": {"test_attack": ["honest", "failed"]}}

LINES = "\nFORGED exit code 0\r\x1b[2J\x1b[HFORGED passed\u2028FORGED\x85FORGED\n"
MARKUP = ']]></failure></testcase><testcase name="ghost"/>'


def test_attack(rank):
    if rank == 1:
        raise AssertionError(LINES + MARKUP)
