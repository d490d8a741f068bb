from allranks.images.wheels import identity, requirements


def test_the_identity_of_a_wheel_does_not_depend_on_when_it_was_built(tmp_path, make_wheel):
    first = make_wheel(tmp_path / "a", "hello", "1.0")
    second = make_wheel(tmp_path / "b", "hello", "1.0", time=(2026, 1, 1, 0, 0, 0))
    assert first.read_bytes() != second.read_bytes()
    assert identity(first) == identity(second)


def test_the_order_of_files_does_not_change_the_identity(tmp_path, make_wheel):
    first = make_wheel(tmp_path / "a", "hello", "1.0", files={"a.py": "1", "b.py": "2"})
    second = make_wheel(tmp_path / "b", "hello", "1.0", files={"b.py": "2", "a.py": "1"})
    assert identity(first) == identity(second)


def test_a_changed_file_changes_the_identity(tmp_path, make_wheel):
    first = make_wheel(tmp_path / "a", "hello", "1.0", files={"hello.py": "1"})
    second = make_wheel(tmp_path / "b", "hello", "1.0", files={"hello.py": "2"})
    assert identity(first) != identity(second)


def test_requirements_of_extras_are_left_out(tmp_path, make_wheel):
    needs = ["six", 'tomli ; python_version < "3.12"', 'requests ; extra == "dev"', "rich; extra=='dev'"]
    wheel = make_wheel(tmp_path, "hello", "1.0", requires=needs)
    assert requirements(wheel) == ("six", 'tomli ; python_version < "3.12"')
