"""What a wheel says of itself."""

import email.parser
import hashlib
import re
import zipfile
from pathlib import Path

_OF_AN_EXTRA = re.compile(r"\bextra\s*==")


def identity(wheel: Path) -> str:
    """A wheel's name and a hash of its RECORD, which lists the hash of every file in it.

    Two builds of one source give the same identity although the archive's time stamps differ, and a wheel of
    three gigabytes is identified without being read.
    """
    record = "\n".join(sorted(_metadata(wheel, "RECORD").splitlines()))
    return f"{wheel.name}={hashlib.sha256(record.encode()).hexdigest()}"


def requirements(wheel: Path) -> tuple[str, ...]:
    """The requirements of a wheel without those of its extras."""
    message = email.parser.HeaderParser().parsestr(_metadata(wheel, "METADATA"))
    return tuple(text for text in message.get_all("Requires-Dist", []) if not _OF_AN_EXTRA.search(text))


def is_pure(wheel: Path) -> bool:
    """Whether a wheel is Python alone, and unpacking it where Python looks is all that its installation does."""
    with zipfile.ZipFile(wheel) as archive:
        elsewhere = any(member.partition("/")[0].endswith(".data") for member in archive.namelist())
    message = email.parser.HeaderParser().parsestr(_metadata(wheel, "WHEEL"))
    return message.get("Root-Is-Purelib", "").strip().lower() == "true" and not elsewhere


def _metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        member = next(member for member in archive.namelist() if _is_metadata(member, name))
        return archive.read(member).decode()


def _is_metadata(member: str, name: str) -> bool:
    folder, _, rest = member.partition("/")
    return folder.endswith(".dist-info") and rest == name
