import subprocess
import sys

PROGRAM = """
import sys
before = set(sys.modules)
import allranks.matrix.declaration, allranks.matrix.select, allranks.matrix.jobs
roots = {name.partition(".")[0] for name in set(sys.modules) - before} - {"allranks"}
print(*sorted(roots - sys.stdlib_module_names))
"""


def test_matrix_needs_the_standard_library_and_packaging_alone():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["packaging"]
