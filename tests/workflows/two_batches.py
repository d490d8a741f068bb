"""A user's matrix file with two batches, for the stand-in and for act."""

GOOD, OTHER = "cpu-g0-1of1", "cpu-g0-r2-1of1"
"""The two batches: on a machine of GitHub's, and on one of the user's own."""

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]
init_method = ["env", "tcp"]

[suites.good]
path = "tests/good"
when = "init_method == 'env'"

[suites.other]
path = "tests/other"
when = "init_method == 'tcp'"

[images.cpu]
image = "{image}"

[[runners]]
when   = "init_method == 'env'"
labels = ["ubuntu-24.04"]

[[runners]]
labels = ["self-hosted", "linux"]
"""
