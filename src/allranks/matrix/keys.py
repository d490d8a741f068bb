"""Declares the keys of the matrix file: a table is a dataclass, and a key is a field of it.

The parser with its errors, the JSON schema and the reference (docs/matrix-keys.md) use these declarations.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any, Final, NoReturn, TypeVar, cast

from packaging.version import Version

from allranks.errors import did_you_mean, listed, shown
from allranks.matrix.axes import is_version
from allranks.matrix.toml_file import LARGEST_NUMBER, Table, dotted, exists
from allranks.matrix.when import LONGEST_CONDITION, Condition, ConditionError, parse_condition

T = TypeVar("T")

NOT_BLANK: Final = r"\S"


def toml(value: object) -> str:
    """Format a value as TOML on one line."""
    match value:
        case Mapping():
            return "{ " + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + " }"
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _assignment(name: str, example: object) -> str:
    return f"{name} = {toml(example)}"


@dataclass(frozen=True)
class Kind:
    """The type of a key's values."""

    words: str  # the type in the reference, in words
    schema: Mapping[str, Any]  # its JSON schema
    read: Callable[["At", Any], Any]  # converts a value in the file to the value of the field, or rejects it
    identity: Callable[[Any], object] = lambda value: value  # equal for duplicates in a list of unique values
    sample: Callable[[str, object], str] = _assignment  # formats a key with an example, as in the file


@dataclass(frozen=True)
class Key:
    """One key of a table."""

    name: str
    kind: Kind
    meaning: str  # one sentence
    example: Any = None
    default: Any = None
    unset: str = ""  # what applies without the key, if the default does not show it
    is_required: bool = False

    @property
    def sample(self) -> str:
        """The key with its example, as in the file."""
        return self.kind.sample(self.name, self.example)


def key(kind: Kind, meaning: str, *, name: str = "", default: object = MISSING, **more: object) -> Any:  # noqa: ANN401
    """Declare a field of a dataclass as a key of the matrix file.

    Args:
        kind: The type of its values.
        meaning: One sentence for the reference and for editors.
        name: The name in the file, if it differs from that of the field.
        default: The value of the field without the key. Without a default, the key is required.
        more: Other fields of :class:`Key`: ``example``, ``unset`` and ``is_required``.
    """
    metadata = {"is_required": default is MISSING, **more, "name": name, "kind": kind, "meaning": meaning}
    return (
        field(metadata=metadata, default_factory=dict) if default == {} else field(metadata=metadata, default=default)
    )


def keys_of(table: type) -> dict[str, Key]:
    """The keys of a table, by the names of their fields."""
    return {
        item.name: Key(**{**item.metadata, "name": item.metadata["name"] or item.name, "default": item.default})
        for item in fields(table)
        if "kind" in item.metadata
    }


def read_table(table: Table, declaration: type[T]) -> T:
    """Read a table as its dataclass; fields ``name`` and ``line`` that are not keys get its name and line."""
    location = {"name": table.key[-1] if table.key else "", "line": table.line}
    plain_fields = {item.name for item in fields(cast("Any", declaration)) if not item.metadata}
    return declaration(
        **read_keys(table, declaration), **{name: value for name, value in location.items() if name in plain_fields}
    )


def read_keys(table: Table, declaration: type, others: Collection[str] = ()) -> dict[str, Any]:
    """Read the keys of a table, by the names of their fields.

    Args:
        table: The table.
        declaration: Its dataclass, whose ``RETIRED`` has the remedies for former keys.
        others: Keys that are not read here.
    """
    keys = keys_of(declaration)
    names = [*(key.name for key in keys.values()), *others]
    for name in table.values:
        if name not in names:
            retired: Mapping[str, str] = getattr(declaration, "RETIRED", {})
            table.reject(name, "there is no such key", retired.get(name) or did_you_mean(name, names))
    values = {}
    for name, declared in keys.items():
        if declared.name in table.values:
            values[name] = declared.kind.read(At(table, declared), table.values[declared.name])
        elif declared.is_required:
            table.reject("", f"the key {declared.name} is missing", f"Add, for example:  {declared.sample}")
    return values


def table_schema(declaration: type) -> dict[str, Any]:
    """The JSON schema of a table."""
    properties, required = {}, []
    for declared in keys_of(declaration).values():
        has_default = declared.default not in (MISSING, None, "", ()) and not declared.unset
        is_value = has_default and declared.example is not None
        default = {"default": json.loads(toml(declared.default))} if is_value else {}
        properties[declared.name] = {"description": declared.meaning, **default, **declared.kind.schema}
        required += [declared.name] if declared.is_required else []
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": required} if required else schema


@dataclass(frozen=True)
class At:
    """The location of a value."""

    table: Table
    key: Key

    def reject(self, what: str, remedy: str = "") -> NoReturn:
        """Raise an error about the value; the default remedy is the key's example."""
        self.table.reject(self.key.name, what, remedy or f"Write it as:  {self.key.sample}")

    def check(self, value: object, types: type | tuple[type, ...], description: str) -> None:
        """Reject a value of another type."""
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            self.reject(f"{shown(value)} is not {description}")


def _matches(pattern: str, text: str) -> bool:
    """Match a text as JSON Schema does, where ``$`` does not match before a line break at the end."""
    return re.search(pattern, text) is not None and not (pattern.endswith("$") and text.endswith("\n"))


def text(pattern: str = NOT_BLANK, problem: str = "", remedy: str = "", suggested: Collection[str] = ()) -> Kind:
    """A string.

    Args:
        pattern: A regular expression, valid in Python and JSON Schema.
        problem: The end of the error message for a string that does not match.
        remedy: The remedy for such a string.
        suggested: Values for completion in editors, and for "did you mean".
    """

    def read(at: At, value: str) -> str:
        if not pattern and isinstance(value, int | float):
            at.reject(f"{shown(value)} is not a string", f'Write it in quotes:  "{shown(value)}"')
        at.check(value, str, "a string")
        if "\0" in value or (pattern and not value.strip()):
            at.reject("is blank or contains a NUL", f"Write {at.key.sample}, or leave it out.")
        if not _matches(pattern, value):
            at.reject(f"{shown(value)} {problem}", did_you_mean(value, suggested) if suggested else remedy)
        return value

    schema = {"type": "string", "pattern": pattern}
    return Kind("string", {"anyOf": [{"enum": [*suggested]}, schema]} if suggested else schema, read)


def version() -> Kind:
    """One exact version of torch."""

    def read(at: At, value: str) -> str:
        if not isinstance(value, str) or not is_version(value):
            at.reject(f"{shown(value)} is not one exact version in quotes")
        return value

    number = r"[0-9]+(\.[0-9]+)+((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
    return Kind("version", {"type": "string", "pattern": f"^{number}$"}, read, identity=Version)


def whole(least: int, most: int = LARGEST_NUMBER) -> Kind:
    """A whole number."""

    def read(at: At, value: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            remedy = f"Write a whole number of at least {least}, without quotes."
            at.reject(f"{shown(value)} is not a whole number", remedy)
        if not least <= value <= most:
            at.reject(f"{shown(value)} is out of range", f"Write a whole number from {least} to {most}.")
        return value

    words = f"whole number from {least}" + (f" to {most}" if most != LARGEST_NUMBER else "")
    return Kind(words, {"type": "integer", "minimum": least, "maximum": most}, read)


def seconds() -> Kind:
    """A time in seconds, greater than zero."""

    def read(at: At, value: float) -> float:
        at.check(value, (int, float), "a number of seconds")
        if not 0 < value <= LARGEST_NUMBER:
            at.reject(f"{shown(value)} is not a valid time", "Write a number of seconds above 0.")
        return float(value)

    return Kind("seconds", {"type": "number", "exclusiveMinimum": 0, "maximum": LARGEST_NUMBER}, read)


def flag() -> Kind:
    """True or false."""

    def read(at: At, value: bool) -> bool:
        at.check(value, bool, "true or false")
        return value

    return Kind("true or false", {"type": "boolean"}, read)


def choice(*values: str) -> Kind:
    """One of a few strings."""

    def read(at: At, value: str) -> str:
        at.check(value, str, "a string")
        if value not in values:
            at.reject(f"{shown(value)} is not one of {listed(values)}", did_you_mean(value, values))
        return value

    return Kind(" or ".join(f"`{toml(value)}`" for value in values), {"enum": [*values]}, read)


def relative_path(*, must_exist: bool = True, is_inside: bool = False) -> Kind:
    """A path relative to the matrix file, so that it is valid on every machine."""

    def read(at: At, value: str) -> Path:
        path, root = Path(text().read(at, value)), at.table.path.parent
        if PurePosixPath(value).is_absolute():
            at.reject(f"{shown(value)} is an absolute path", f"Write it relative to the matrix file, in {root}.")
        if is_inside and ".." in path.parts:
            remedy = "Only files below the matrix file's folder are copied into a job: move it there."
            at.reject(f"{shown(value)} leads out of the repository", remedy)
        if must_exist and not exists(root / path):
            at.reject(f"there is no {shown(value)}", f"Create it, or write a path relative to {root}.")
        return path

    return Kind("path", text().schema, read)


def condition() -> Kind:
    """A condition on the axes of a cell."""

    def read(at: At, value: str) -> Condition:
        try:
            found = parse_condition(text().read(at, value))
        except ConditionError as error:
            at.reject(f"the condition {error.what}", error.remedy)
        at.table.conditions.append((at.table, found))
        return found

    return Kind("condition", {"type": "string", "pattern": NOT_BLANK, "maxLength": LONGEST_CONDITION}, read)


def many(kind: Kind, least: int = 0, *, is_unique: bool = False, or_one: bool = False) -> Kind:
    """A list of at least `least` values, read as a tuple; with `or_one`, a single value is a list of one."""

    def read(at: At, value: object) -> tuple[Any, ...]:
        values = [value] if or_one and not isinstance(value, list) else value
        at.check(values, list, f"a {words}")
        values = cast("list[Any]", values)
        if len(values) < least:
            at.reject("the list is empty")
        found = tuple(kind.read(at, item) for item in values)
        identities = [kind.identity(item) for item in found]
        if is_unique:
            repeated = [item for item in found if identities.count(kind.identity(item)) > 1]
            if repeated:
                at.reject(f"{shown(repeated[-1])} occurs twice", "Write each value once.")
        return found

    several = {"type": "array", "items": kind.schema, "minItems": least, "uniqueItems": is_unique}
    words = f"list of {kind.words}{'s' if kind.words.isalpha() else ''}"
    return Kind(
        f"{kind.words}, or a list" if or_one else words, {"anyOf": [kind.schema, several]} if or_one else several, read
    )


def by_name(kind: Kind, pattern: str = NOT_BLANK, remedy: str = "", least: int = 0) -> Kind:
    """A table whose keys are names that the user chooses.

    Args:
        kind: The type of its values.
        pattern: A regular expression for the names.
        remedy: The remedy for a name that does not match.
        least: The minimum number of names.
    """

    def read(at: At, _value: object) -> dict[str, Any]:
        group = at.table.below(at.key.name)
        for name in group.values:
            if not _matches(pattern, name):
                group.reject(name, "is not a valid name here", remedy)
        if len(group.values) < least:
            at.reject("the table is empty", f"Add, for example:  {at.key.sample}")
        example = next(iter(at.key.example.values())) if at.key.example else ""
        return {name: kind.read(At(group, Key(name, kind, "", example)), value) for name, value in group.values.items()}

    schema = {"type": "object", "propertyNames": {"pattern": pattern}, "additionalProperties": kind.schema}
    is_table = kind.sample is not _assignment
    sample = (lambda name, example: kind.sample(f"{name}.NAME", example)) if is_table else _assignment
    return Kind(f"{kind.words} by name", {**schema, "minProperties": least}, read, sample=sample)


def one(declaration: type) -> Kind:
    """A table with declared keys."""

    def sample(name: str, _example: object) -> str:
        keys = list(keys_of(declaration).values())
        examples = [key for key in keys if key.is_required] or keys[:1]
        return "  ".join([f"[{name}]", *(key.sample for key in examples)])

    def read(at: At, _value: object) -> object:
        return read_table(at.table.below(at.key.name), declaration)

    return Kind("table", table_schema(declaration), read, sample=sample)


def several(declaration: type) -> Kind:
    """An array of tables."""
    single = one(declaration)

    def read(at: At, value: object) -> tuple[object, ...]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            remedy = f"Write it as:  [[{dotted((*at.table.key, at.key.name))}]]"
            at.reject(f"{shown(value)} is not an array of tables", remedy)
        return tuple(read_table(at.table.below(at.key.name, index), declaration) for index in range(len(value)))

    def sample(name: str, example: object) -> str:
        head, _, rest = single.sample(name, example).partition("]")
        return f"[{head}]]{rest}"

    return Kind("array of tables", {"type": "array", "items": single.schema}, read, sample=sample)
