"""What the user may have meant by a word that nothing goes by."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_SHOWN = 60
"""Characters of a value that a message repeats; more would bury the sentence."""


def shown(value: object) -> str:
    """A value as a message repeats it: quoted as in the file, and never long."""
    if isinstance(value, int) and value.bit_length() > 64:  # decimal digits of a huge number are refused by Python
        return "a number of more than 64 bits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def listed(values: Iterable[object]) -> str:
    """Values one after the other, cut after the first dozen."""
    texts = [shown(value) for value in values]
    rest = f" and {len(texts) - 12} more" if len(texts) > 12 else ""
    return ", ".join(texts[:12]) + rest


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like ``word``, whatever its case; None if none is close."""
    by_lower_case = {name.lower(): name for name in known}
    close = get_close_matches(word[:LONGEST_SHOWN].lower(), by_lower_case, n=1, cutoff=0.6)
    return by_lower_case[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """One sentence: the near miss if there is one, and otherwise everything that would be right."""
    values = list(known)
    if not values:
        return "There is none."
    close = nearest(word, [value for value in values if isinstance(value, str)]) if isinstance(word, str) else None
    return f"Did you mean {close!r}?" if close else f"Known: {listed(values)}."
