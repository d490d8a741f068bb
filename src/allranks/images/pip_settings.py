"""The settings of the host's pip that decide which files it installs, for the keys of what it made.

It needs only the standard library, since the nox sessions use it, and starts no process, since every run asks.
"""

import configparser
import errno
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

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

_HOSTS = Path("/etc/pip.conf")

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


def pip_settings(folder: Path, prefix: Path | None = None) -> tuple[str, ...]:
    """What the host's pip is told by its files and by ``PIP_`` variables, where that decides what is installed.

    Folders and addresses count, not their contents: as on an index, a requirement without a version keeps the version
    that it had. Of files with constraints the text counts.

    Args:
        folder: The folder that pip works in; relative paths start there.
        prefix: The environment of the pip, which may have a ``pip.conf``.
    """
    told = [_told(where, name, value, folder) for where, name, value in _given(os.environ, prefix) if value.strip()]
    return tuple(sorted(without_logins(text) for text in told))


def _given(environ: Mapping[str, str], prefix: Path | None) -> Iterator[tuple[str, str, str]]:
    """Sections, names and values that count."""
    found = [("", name[4:], value) for name, value in environ.items() if name.startswith("PIP_")]
    for file in _files(environ, prefix):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(file.read_text(encoding="utf-8", errors="replace"))
        except (OSError, configparser.Error):  # pip itself reports a file that it cannot use
            continue
        found += [(section, *item) for section in parser.sections() for item in parser.items(section)]
    for section, name, value in found:
        plain = name.lower().replace("_", "-").removeprefix("--")
        if plain not in _NOT_DECISIVE:
            yield section, plain, value


def _files(environ: Mapping[str, str], prefix: Path | None) -> Iterator[Path]:
    """The configuration files that pip reads (pip.pypa.io/en/stable/topics/configuration)."""
    chosen = environ.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return
    yield _HOSTS
    for base in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        yield Path(base, "pip/pip.conf")
    if not (chosen and os.path.exists(chosen)):  # noqa: PTH110 - as pip asks, for which "" is no path
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises without one
        yield Path(home, ".pip/pip.conf")
        yield Path(environ.get("XDG_CONFIG_HOME") or f"{home}/.config", "pip/pip.conf")
    if prefix:
        yield prefix / "pip.conf"
    if chosen:
        yield Path(chosen)


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


def prefix_of(python: str | None) -> Path | None:
    """The environment of an interpreter: this one's is known, and another's has it in its folder ``bin``."""
    if python is None:
        return None
    return Path(sys.prefix) if python == sys.executable else Path(python).parent.parent
