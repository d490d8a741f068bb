"""The settings of the host's pip that decide which files it installs, for the keys of what it made.

It needs only the standard library, since the nox sessions use it.
"""

import ast
import errno
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from allranks.errors import AllranksError
from allranks.user_cache import keep, made_cache_folder

_NOT_DECISIVE = frozenset(
    {
        *("cache-dir", "no-cache-dir", "cert", "client-cert", "proxy", "trusted-host", "keyring-provider"),
        *("timeout", "default-timeout", "retries", "resume-retries", "config-file", "disable-pip-version-check"),
        *(
            "no-color",
            "no-input",
            "progress-bar",
            "quiet",
            "verbose",
            "log",
            "log-file",
            "local-log",
            "debug",
            "report",
        ),
        *("no-warn-script-location", "no-warn-conflicts", "no-python-version-warning", "root-user-action", "yes"),
        *("require-virtualenv", "require-venv", "exists-action", "src", "no-clean", "dry-run", "compile", "no-compile"),
    }
)
"""How pip fetches and what it prints. Every other setting counts, also those of a later pip."""

_PLACES = frozenset({"find-links", "index-url", "extra-index-url", "pypi-url"})
"""Settings whose values are addresses or folders, separated by blanks."""

_FILES = frozenset({"constraint", "build-constraint", "requirement"})
"""Settings whose values are requirements files, separated by blanks."""

_LOGIN = re.compile(r"(?<=://)[^/\s?#\"'\0]*@")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_OPTION = re.compile(
    r"(?P<name>--(?:requirement|constraint|find-links|index-url|extra-index-url)|-[rcfi])[\s=]*(?P<value>\S.*)"
)
_INCLUDES = ("-r", "-c", "--requirement", "--constraint")


def without_logins(text: str) -> str:
    """A text without user names and passwords in its addresses: for keys, which outlive a token, and for messages."""
    return _LOGIN.sub("****@", text)


def with_variables(text: str) -> str:
    """A text with the values of ``${VARIABLE}``, as pip reads requirements files; unset ones stay."""
    return _VARIABLE.sub(lambda found: os.environ.get(found[1]) or found[0], text)


def pip_settings(folder: Path, python: str | None = None) -> tuple[str, ...]:
    """What the host's pip is told by its files and by ``PIP_`` variables, where that decides what is installed.

    Folders and addresses count, not their contents: as on an index, a requirement without a version keeps the version
    that it had. Of files with constraints the text counts.

    Args:
        folder: The folder that pip works in; relative paths start there.
        python: The interpreter whose pip is asked; None for :func:`python_that_builds`.
    """
    asked = python or python_that_builds()
    return tuple(sorted(_told(*each, folder) for each in (_remembered(asked) if asked else ())))


_Setting = tuple[str, str, str]  # section, name, value

_PIP = """
import runpy, sys
sys.path[:] = [entry for entry in sys.path if entry]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""As ``-m pip``, but no module in the working folder takes its place."""

_READ = re.compile(r"For variant '\w+', will try loading '(.+)'")
_SETTING = re.compile(r"(?::env:|(?P<section>[\w-]+))\.(?P<name>[\w-]+)=(?P<value>['\"].*)")
_PLACES_OF_FILES = ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")


def _remembered(python: str) -> list[_Setting]:
    """The answer of :func:`_ask`, which takes half a second, as long as no variable and no file of pip's changes."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    state = [python, *sorted(variables.items()), *map(os.environ.get, _PLACES_OF_FILES)]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
    memory: Path | None = None
    with suppress(AllranksError, OSError, ValueError, LookupError, TypeError):
        memory = made_cache_folder("pip") / f"{key}.json"
        kept = json.loads(memory.read_text(encoding="utf-8"))
        if kept["stamps"] == _stamps(kept["stamps"]):
            return [(section, name, value) for section, name, value in kept["settings"]]
    files, settings = _ask(python)
    if memory:
        with suppress(OSError):
            keep(memory, json.dumps({"stamps": _stamps(files), "settings": settings}))
    return settings


def _stamps(files: Iterable[str]) -> dict[str, str]:
    stamps = {}
    for file in files:
        stamps[file] = ""
        with suppress(OSError):
            found = os.stat(file)  # noqa: PTH116 - a text, as JSON keeps it
            stamps[file] = f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
    return stamps


def _ask(python: str) -> tuple[list[str], list[_Setting]]:
    """Ask an interpreter's pip for the files that it reads, and for its settings that count, without logins.

    There are none if it has no pip, or cannot read its files: it reports that itself when it is used.
    """
    import subprocess  # noqa: PLC0415 - most runs ask nobody

    command = [python, "-c", _PIP, "config", "list", "--verbose"]
    asked = subprocess.run(command, capture_output=True, check=False, text=True, errors="replace")
    lines = asked.stdout.splitlines() if asked.returncode == 0 else []
    found = [
        (each["section"] or "", each["name"], str(ast.literal_eval(each["value"]))) for each in _settings_in(lines)
    ]
    settings = [
        (section, name, without_logins(value))
        for section, name, value in found
        if value.strip() and name not in _NOT_DECISIVE
    ]
    return _READ.findall(asked.stdout + asked.stderr), settings


def _settings_in(lines: Iterable[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(_SETTING.fullmatch, lines))


def _told(section: str, name: str, value: str, folder: Path) -> str:
    words = value.split()
    if name in _PLACES:
        value = " ".join(_place(word, folder) for word in words)
    elif name in _FILES:
        value = "\n".join(text for word in words for text in _contents(folder / word))
    return f"{section}.{name}={value}"


def _place(text: str, folder: Path) -> str:
    return text if "://" in text else os.path.normpath(folder / os.path.expanduser(text))  # noqa: PTH111


def _contents(file: Path) -> list[str]:
    try:
        return requirement_texts(file)
    except OSError:  # pip itself reports it
        return [str(file)]


def requirement_lines(text: str) -> Iterator[str]:
    """The non-empty lines of a requirements file, without comments, continued lines as one."""
    lines = (_COMMENT.sub("", line).strip() for line in _CONTINUED.sub("", text).splitlines())
    return (line for line in lines if line)


def requirement_texts(file: Path) -> list[str]:
    """The text of a requirements file, then of each file that it includes, every file once; without logins.

    Folders that a file names relative to itself (``--find-links wheels``) follow its text in full: the same text
    beside other folders is something else.

    Raises:
        OSError: A file cannot be read; it is the error's ``filename``.
    """
    seen: dict[Path, list[str]] = {}
    _read(file, seen)
    return [text for texts in seen.values() for text in texts]


def _read(file: Path, seen: dict[Path, list[str]]) -> None:
    if file in seen:
        return
    try:
        text = with_variables(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, str(error), str(file)) from error
    seen[file] = [without_logins(text)]
    for line in requirement_lines(text):
        option = _OPTION.match(line)
        if option is None or "://" in option["value"]:
            continue
        path = file.parent / _first_word(option["value"])
        if option["name"] in _INCLUDES:
            _read(path, seen)
        elif path.exists():
            seen[file].append(f"{option['name']} {os.path.realpath(path)}")


def _first_word(text: str) -> str:
    try:
        return shlex.split(text)[0]
    except (ValueError, IndexError):  # an open quotation mark; pip itself reports it
        return text


def python_that_builds() -> str | None:
    """The interpreter whose pip is used, if it has one: every run asks, so no process is started to check that."""
    return sys.executable if has_pip() else shutil.which("python3")


def has_pip() -> bool:
    """Whether this Python has pip; environments made by uv have none."""
    return importlib.util.find_spec("pip") is not None
