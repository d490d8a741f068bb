import tomllib

import pytest

from allranks.matrix.toml_file import key_lines, line_of, read

TEXT = '''\
# a comment with [brackets] and = signs
top = 1

[matrix]
backend = ["gloo", # the CPU's [
  "nccl",
]
"world size" = 2
nested.key.path = """
[not.a.table]
not_a_key = "x"
"""
after = \'\'\'
a ' quote and a # hash\'\'\'
last = { inline = "a = b", other = [1, 2] }
several = [
  { inside = 1 },
  [""" quoted """, "["],
]

[[matrix.exclude]]
when = "backend == 'nccl' # and = so on"

  [[matrix.exclude]]
  reason = \'it\\\'

[ images . "a.b" ]
torch = "2.13.0"
[[matrix.exclude.deeper]]
x = 1'''


LINES = key_lines(TEXT, tomllib.loads(TEXT))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("matrix",), 4),
        (("matrix", "backend"), 5),
        (("matrix", "world size"), 8),
        (("matrix", "nested", "key", "path"), 9),
        (("matrix", "nested"), 9),
        (("matrix", "after"), 13),
        (("matrix", "last"), 15),
        (("matrix", "exclude", 0), 21),
        (("matrix", "exclude", 0, "when"), 22),
        (("matrix", "exclude", 1), 24),
        (("matrix", "exclude", 1, "reason"), 25),
        (("images", "a.b"), 27),
        (("images", "a.b", "torch"), 28),
        (("matrix", "exclude", 1, "deeper", 0, "x"), 30),
    ],
)
def test_each_key_is_found_on_its_line(path, line):
    assert LINES[path] == line


def test_nothing_inside_a_value_is_taken_for_a_key():
    assert "after" in tomllib.loads(TEXT)["matrix"]
    named = {part for path in LINES for part in path}
    assert named.isdisjoint({"not", "a", "table", "not_a_key", "inline", "other", "inside"})


@pytest.mark.parametrize(
    ("path", "line"),
    [(("matrix", "last", "inline"), 15), (("matrix", "backend", 1), 5), (("matrix", "absent"), 4), (("absent",), 1)],
)
def test_a_key_without_a_line_of_its_own_has_its_table_s(path, line):
    assert line_of(LINES, path) == line


def test_windows_line_ends_count_once():
    assert key_lines("a = 1\r\nb = 2\r\n", {"a": 1, "b": 2})[("b",)] == 2


@pytest.mark.parametrize(
    "text",
    [
        "list = [\n  [1],\n  ['x']\n]\nafter = 1",
        'text = \'a """ b\'\nafter = 1\nother = \' """ \'',
        '"a\\u0062" = 1\n["x\\ty"]\nafter = 1',
    ],
)
def test_a_text_that_is_misread_has_no_wrong_lines(tmp_path, text):
    (tmp_path / "matrix.toml").write_text(text)
    table = read(tmp_path / "matrix.toml")
    lines = text.split("\n")
    assert all(str(path[-1]) in lines[line - 1] for path, line in table.lines.items())
    line = line_of(table.lines, ("after",))
    assert table.location("after").endswith(f"matrix.toml:{line}: after" if line else "matrix.toml: after")
