"""Versions of pytest that cannot be had."""

import pytest

from allranks.protocol.refusals import too_old


@pytest.mark.parametrize("version", ["7.3.2", "6.0"])
def test_an_old_pytest_is_refused_with_the_version_to_install(version):
    assert too_old(version) == (f"pytest {version} is too old: install pytest 8 or newer (`pip install 'pytest>=8'`).")


@pytest.mark.parametrize("version", ["8.0.0", "9.2.0", "10.0.0rc1", "main"])
def test_any_other_is_not(version):
    assert not too_old(version)
