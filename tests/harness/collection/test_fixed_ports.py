"""The fixed port of a test, as its source shows it."""

import importlib.util
from types import ModuleType

import pytest

from allranks.harness.collection.fixed_ports import fixed_port

SOURCE = """
import functools
import os
import unittest
from contextlib import contextmanager

@contextmanager
def at_a_port():
    os.environ["MASTER_PORT"] = "6789"
    yield

def elsewhere():
    return 29500

def decorated(test):
    @functools.wraps(test)
    def wrapper(self):
        test(self)
    return wrapper

class Plain(unittest.TestCase):
    def test_binds(self):
        os.environ["MASTER_PORT"] = "1234"

    def test_meets(self):
        init(init_method="tcp://localhost:23456")

    def test_takes_an_argument(self):
        serve(port=54321)

    @decorated
    @decorated
    def test_is_wrapped(self):
        serve("host", master_port="1111")

    def test_calls(self):
        def inside():
            with at_a_port():
                pass
        inside()

    def test_calls_a_method(self):
        self.helper()

    def helper(self):
        self.port = 2222

    def test_has_none(self):
        report = 3
        elsewhere()

class Prepared(Plain):
    @classmethod
    def setUpClass(cls):
        cls.environment = {"MASTER_PORT": "12355"}

    def test_is_set_up(self): ...
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> ModuleType:
    file = tmp_path_factory.mktemp("ports") / "cases_with_ports.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("test_class", "name", "port"),
    [
        ("Plain", "test_binds", "1234"),
        ("Plain", "test_meets", "23456"),
        ("Plain", "test_takes_an_argument", "54321"),
        ("Plain", "test_is_wrapped", "1111"),
        ("Plain", "test_calls", "6789"),
        ("Plain", "test_calls_a_method", "2222"),
        ("Plain", "test_has_none", ""),
        ("Prepared", "test_is_set_up", "12355"),
        ("Prepared", "test_has_none", "12355"),
        ("Prepared", "test_absent", ""),
    ],
)
def test_a_port_is_found_where_people_write_it(cases, test_class, name, port):
    assert fixed_port(getattr(cases, test_class), name) == port


def test_a_port_outside_all_functions_is_that_of_each_test(tmp_path):
    file = tmp_path / "cases_of_a_port.py"
    file.write_text("PORT = 4444\n\nclass Case:\n    def test_a(self): ...\n")
    namespace: dict[str, type] = {}
    exec(compile(file.read_bytes(), file, "exec"), namespace)  # noqa: S102 - the lines above
    assert fixed_port(namespace["Case"], "test_a") == "4444"
