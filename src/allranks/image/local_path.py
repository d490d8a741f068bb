"""Which requirements name something on this host, as pip reads them (pip/_internal/req/constructors.py)."""

import os
import re
from collections.abc import Iterator

_EDITABLE = re.compile(r"(?:-e|--ed[a-z]*)(?:[\s=]+|(?<=-e))(?P<target>.+)")
_NAMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>\S+)")
_URL = re.compile(r"(?:[a-z]+\+)?(?P<transport>[a-z][a-z0-9.-]*)://", re.IGNORECASE)
_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_MARKER_OR_OPTION = re.compile(r"\s*;|\s--?[a-z]")
_EXTRAS = re.compile(r"\[[^\]]*\]$")
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lzma", ".tlz")


def requirement_lines(text: str) -> Iterator[str]:
    """The lines of a requirements file that say something, without comments, continued lines as one."""
    lines = (_COMMENT.sub("", line).strip() for line in _CONTINUED.sub("", text).splitlines())
    return (line for line in lines if line)


def names_local_path(requirement: str) -> bool:
    """Whether a requirement, or a line of a requirements file, names a file or folder of this host.

    Options other than ``--editable`` name none that would be installed.
    """
    text = os.path.expandvars(requirement.strip())
    if editable := _EDITABLE.fullmatch(text):
        return not _is_remote(_target(editable["target"].strip("\"' ")))
    if text.startswith("-"):
        return False
    target = _target(text)
    return not _is_remote(target) and (target != text or _is_path(text))


def _target(requirement: str) -> str:
    """What a ``name @ target`` points at; the requirement itself where it is none."""
    named = _NAMED.match(requirement)
    return named["url"] if named else requirement


def _is_remote(text: str) -> bool:
    url = _URL.match(text)
    return url is not None and url["transport"].lower() != "file"


def _is_path(text: str) -> bool:
    name = _EXTRAS.sub("", _MARKER_OR_OPTION.split(text, maxsplit=1)[0])
    return name.startswith((".", "file:")) or os.sep in name or name.lower().endswith(_ARCHIVES)
