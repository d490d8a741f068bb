"""Names of tests in JUnit XML."""

import os
import re

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LIKE_ESCAPED = re.compile("#(?=x(?:[01][0-9A-F]|23|D[89A-F][0-9A-F]{2}|FFF[EF]))")


def split_nodeid(nodeid: str) -> tuple[str, str]:
    """``classname`` and ``name`` of a node id, as pytest's own JUnit report has them.

    ``pkg/test_a.py::TestB::test_c[x::y]`` gives ``("pkg.test_a.TestB", "test_c[x::y]")``, and a module that was
    skipped as a whole, ``pkg/test_a.py``, gives ``("", "pkg.test_a")``.
    """
    path, bracket, parameters = nodeid.partition("[")
    file, *names = path.split("::")
    module = file.removesuffix(".py").replace(os.sep, ".")
    if not names:
        return "", module
    *classes, name = names
    return ".".join((module, *classes)), name + bracket + parameters


def legal(text: str) -> str:
    """`text` with the characters that XML 1.0 forbids written as ``#xNN``."""
    return _ILLEGAL.sub(lambda match: f"#x{ord(match.group()):02X}", text)


def xml_id(nodeid: str) -> str:
    """A node id, or another name, as reports have it: :func:`legal`, and different for each id.

    What an id has that already looks like such a ``#xNN`` gets ``#x23`` for its ``#``. All other ids are as they were.
    """
    return legal(_LIKE_ESCAPED.sub("#x23", nodeid))
