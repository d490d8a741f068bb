"""The one check of arguments that several requirements share."""


def at_least_one(n: object, of: str) -> int:
    """``n``, which is to say how many of something a test needs.

    Raises:
        TypeError: It is no whole number: most often a decorator whose parentheses were forgotten.
        ValueError: It is less than 1.
    """
    if not isinstance(n, int) or isinstance(n, bool):
        msg = f"how many {of} must be a whole number, and {n!r} is not"
        raise TypeError(msg)
    if n < 1:
        msg = f"a test cannot need {n} {of}: give a number from 1"
        raise ValueError(msg)
    return n
