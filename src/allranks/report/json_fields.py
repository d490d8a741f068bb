"""The fields of a JSON object from elsewhere, each of the type that it should have, or an error that names it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from allranks.report.xml_text import readable

MOST: Final = 10**9
"""What no count of tests, jobs or attempts reaches."""

LAST_MOMENT: Final = 253_402_300_799.0
"""The end of the year 9999, the last that ``datetime`` knows, in seconds since the epoch."""

_SHOWN: Final = 60


class Fields:
    """A JSON object, by its fields. A field that is absent is like one that is null.

    Args:
        value: What JSON has in its place.
        path: How to get there from the whole document: ``policy``, ``jobs.3``; empty for the document.

    Raises:
        ValueError: It is no object. All methods raise it, too, for fields of another type than they are asked for.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise _wrong(path or "the document", value, "an object")
        self._value: Mapping[str, object] = value
        self._path = path

    def __iter__(self) -> Iterator[str]:
        """The names of its fields."""
        return iter(self._value)

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """True if the field is there, and not null."""
        return self._value.get(name) is not None

    def _wrong(self, name: str, wanted: str) -> ValueError:
        return _wrong(self._at(name), self._value.get(name), wanted)

    def text(self, name: str, default: str | None = "") -> str:
        """A text, made readable; without a default, one that has to be there."""
        value = self._value.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return readable(value)

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of some texts; empty where there is none."""
        value = self.text(name)
        if value and value not in choices:
            raise self._wrong(name, " or ".join(map(repr, choices)))
        return value

    def raw_texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, each as it is."""
        values = self.items(name)
        for value in values:
            if not isinstance(value, str):
                raise self._wrong(name, "a list of texts")
        return tuple(str(value) for value in values)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, each made readable."""
        return tuple(map(readable, self.raw_texts(name)))

    def items(self, name: str) -> list[object]:
        """A list of anything; empty where there is none."""
        value = self._value.get(name)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def whole(self, name: str, default: int | None = 0, *, least: int = 0, most: int = MOST) -> int:
        """A whole number from ``least`` to ``most``; without a default, one that has to be there."""
        value = self._value.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def moment(self, name: str) -> float | None:
        """Seconds since the epoch."""
        value = self._value.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LAST_MOMENT:
            raise self._wrong(name, "a number of seconds since 1970")
        return float(value)

    def scalar(self, name: str) -> str | int:
        """A text or a whole number."""
        value = self._value.get(name)
        return self.text(name) if isinstance(value, str) else self.whole(name, None)

    def fields(self, name: str) -> "Fields":
        """An object; an empty one where there is none."""
        value = self._value.get(name)
        return Fields({} if value is None else value, self._at(name))

    def objects(self, name: str) -> Iterator["Fields"]:
        """A list of objects; nothing where there is none."""
        return (Fields(value, f"{self._at(name)}.{place}") for place, value in enumerate(self.items(name)))


def _wrong(path: str, value: object, wanted: str) -> ValueError:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return ValueError(f"{path} is {shown[:_SHOWN]}, not {wanted}")
