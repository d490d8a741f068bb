import importlib

import pytest

import allranks.testing


@pytest.mark.parametrize("name", allranks.testing.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(allranks.testing, name).__module__.startswith(
        ("allranks.testing", "allranks.protocol.skip_codes", "builtins")
    )


def test_dir_lists_every_public_name():
    assert set(allranks.testing.__all__) <= set(dir(allranks.testing))


def test_a_public_name_is_the_object_of_its_module():
    assert allranks.testing.SkipCode is importlib.import_module("allranks.protocol.skip_codes").SkipCode


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'require_tpus'"):
        _ = allranks.testing.require_tpus
