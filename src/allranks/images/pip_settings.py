"""The settings of the host's pip that affect what it installs, which are part of cache keys.

This module needs only the standard library, since the nox sessions use it.
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
from allranks.user_cache import made_cache_folder, write_atomically

_IRRELEVANT = frozenset(
    {
        *("cache-dir", "no-cache-dir", "cert", "client-cert", "proxy", "trusted-host", "keyring-provider"),
        *("timeout", "default-timeout", "retries", "resume-retries", "config-file", "disable-pip-version-check"),
        *("no-color", "no-input", "progress-bar", "quiet", "verbose", "log", "log-file", "local-log"),
        *("debug", "report"),
        *("no-warn-script-location", "no-warn-conflicts", "no-python-version-warning", "root-user-action", "yes"),
        *("require-virtualenv", "require-venv", "exists-action", "src", "no-clean", "dry-run", "compile", "no-compile"),
    }
)
"""Settings that only affect how pip downloads and what it prints. All others, known or not, are part of keys."""

_LOCATIONS = frozenset({"find-links", "index-url", "extra-index-url", "pypi-url"})
"""Settings whose values are addresses or folders, separated by spaces."""

_FILES = frozenset({"constraint", "build-constraint", "requirement"})
"""Settings whose values are requirements files, separated by spaces."""

_LOGIN = re.compile(r"(?<=://)[^/\s?#\"'\0]*@")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_OPTION = re.compile(
    r"(?P<name>--(?:requirement|constraint|find-links|index-url|extra-index-url)|-[rcfi])[\s=]*(?P<value>\S.*)"
)
_INCLUDES = ("-r", "-c", "--requirement", "--constraint")


def without_logins(text: str) -> str:
    """Remove user names and passwords from addresses, for messages, and for keys, which must not change with them."""
    return _LOGIN.sub("****@", text)


def with_variables(text: str) -> str:
    """Expand ``${VARIABLE}`` as pip does in requirements files; unset variables are kept."""
    return _VARIABLE.sub(lambda found: os.environ.get(found[1]) or found[0], text)


def pip_settings(folder: Path, python: str | None = None) -> tuple[str, ...]:
    """The relevant settings of the host's pip, from its files and from ``PIP_`` variables.

    They include the text of requirements files, but only the addresses of indexes and folders, not their contents.

    Args:
        folder: pip's working folder, for relative paths.
        python: The interpreter whose pip is queried; None for :func:`python_that_builds`.
    """
    queried = python or python_that_builds()
    return tuple(sorted(_resolved(*setting, folder) for setting in (_cached_settings(queried) if queried else ())))


_Setting = tuple[str, str, str]  # section, name, value

_PIP = """
import runpy, sys
sys.path[:] = [entry for entry in sys.path if entry]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""``-m pip`` that ignores a module ``pip`` in the working folder."""

_READ = re.compile(r"For variant '\w+', will try loading '(.+)'")
_SETTING = re.compile(r"(?::env:|(?P<section>[\w-]+))\.(?P<name>[\w-]+)=(?P<value>['\"].*)")
_CONFIG_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")


def _cached_settings(python: str) -> list[_Setting]:
    """The result of :func:`_query`, which takes 0.5 s, cached until a variable or a configuration file changes."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    state = [python, *sorted(variables.items()), *map(os.environ.get, _CONFIG_VARIABLES)]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
    cache: Path | None = None
    with suppress(AllranksError, OSError, ValueError, LookupError, TypeError):
        cache = made_cache_folder("pip") / f"{key}.json"
        cached = json.loads(cache.read_text(encoding="utf-8"))
        if cached["stamps"] == _stamps(cached["stamps"]):
            return [(section, name, value) for section, name, value in cached["settings"]]
    files, settings = _query(python)
    if cache:
        with suppress(OSError):
            write_atomically(cache, json.dumps({"stamps": _stamps(files), "settings": settings}))
    return settings


def _stamps(files: Iterable[str]) -> dict[str, str]:
    stamps = {}
    for file in files:
        stamps[file] = ""
        with suppress(OSError):
            found = os.stat(file)  # noqa: PTH116 - a string from JSON
            stamps[file] = f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
    return stamps


def _query(python: str) -> tuple[list[str], list[_Setting]]:
    """Query an interpreter's pip for its configuration files, and for its relevant settings, without logins.

    Both lists are empty if the interpreter has no pip, or if pip fails, which it will report when it is used.
    """
    import subprocess  # noqa: PLC0415 - most runs use the cache

    command = [python, "-c", _PIP, "config", "list", "--verbose"]
    pip = subprocess.run(command, capture_output=True, check=False, text=True, errors="replace")
    lines = pip.stdout.splitlines() if pip.returncode == 0 else []
    found = (
        (line["section"] or "", line["name"], str(ast.literal_eval(line["value"])))
        for line in filter(None, map(_SETTING.fullmatch, lines))
    )
    settings = [
        (section, name, without_logins(value))
        for section, name, value in found
        if value.strip() and name not in _IRRELEVANT
    ]
    return _READ.findall(pip.stdout + pip.stderr), settings


def _resolved(section: str, name: str, value: str, folder: Path) -> str:
    """A setting with absolute paths, and with the text of requirements files."""
    words = value.split()
    if name in _LOCATIONS:
        value = " ".join(_absolute(word, folder) for word in words)
    elif name in _FILES:
        value = "\n".join(text for word in words for text in _contents(folder / word))
    return f"{section}.{name}={value}"


def _absolute(text: str, folder: Path) -> str:
    return text if "://" in text else os.path.normpath(folder / os.path.expanduser(text))  # noqa: PTH111


def _contents(file: Path) -> list[str]:
    try:
        return requirement_texts(file)
    except OSError:  # pip reports it
        return [str(file)]


def requirement_lines(text: str) -> Iterator[str]:
    """Yield the non-empty lines of a requirements file, without comments, and with continued lines joined."""
    lines = (_COMMENT.sub("", line).strip() for line in _CONTINUED.sub("", text).splitlines())
    return (line for line in lines if line)


def requirement_texts(file: Path) -> list[str]:
    """The texts of a requirements file and of all files that it includes, without logins.

    After the text of a file come the absolute paths of the folders that it names by relative paths (``--find-links
    wheels``): in another folder, the same text has another meaning.

    Raises:
        OSError: A file, the error's ``filename``, cannot be read.
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
    except (ValueError, IndexError):  # an unclosed quote; pip reports it
        return text


def python_that_builds() -> str | None:
    """The interpreter whose pip is used: this one, or ``python3``, which is not checked for pip, for speed."""
    return sys.executable if has_pip() else shutil.which("python3")


def has_pip() -> bool:
    """Whether this Python has pip; environments made by uv have none."""
    return importlib.util.find_spec("pip") is not None
