"""The order of torch's versions: PEP 440 without epochs, which torch has none of.

The packaging library knows it too, and is not in the standard library.
"""

import re

Key = tuple[tuple[int, ...], tuple[int, int], int, float, tuple[str, ...]]
"""What versions are ordered by: release, pre-release, post-release, development release, local version."""

_VERSION = re.compile(
    r"(?P<release>\d{1,9}(?:\.\d{1,9})+)(?:(?P<pre>a|b|rc)(?P<pre_number>\d{1,9}))?(?:\.post(?P<post>\d{1,9}))?"
    r"(?:\.dev(?P<dev>\d{1,9}))?(?:\+(?P<local>[a-z0-9]+(?:\.[a-z0-9]+)*))?",
    re.ASCII,
)
_PHASES = ("a", "b", "rc")
_FINAL, _BEFORE_ALL = (len(_PHASES), 0), (-1, 0)


def is_version(text: str) -> bool:
    """Whether it is one exact version, as torch writes its own: ``2.14.1``, ``2.15.0.dev20261101+cu130``."""
    return _VERSION.fullmatch(text) is not None


def version_key(text: str) -> Key:
    """What orders versions: ``2.9.1`` before ``2.14``, a release candidate before its release, ``2.14`` as ``2.14.0``.

    What is no version comes before all of them.
    """
    parts = _VERSION.fullmatch(text)
    if parts is None:
        return (), _BEFORE_ALL, -1, -1.0, (text,)
    release = tuple(int(number) for number in parts["release"].split("."))
    while release and release[-1] == 0:
        release = release[:-1]
    pre = (_PHASES.index(parts["pre"]), int(parts["pre_number"])) if parts["pre"] else _FINAL
    if parts["dev"] and not parts["pre"] and not parts["post"]:
        pre = _BEFORE_ALL
    dev = float(parts["dev"]) if parts["dev"] else float("inf")
    local = tuple(parts["local"].split(".")) if parts["local"] else ()
    return release, pre, int(parts["post"] or -1), dev, local
