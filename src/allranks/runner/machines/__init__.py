"""Which CI machine runs which jobs: a plan that each machine checks before it uses it."""
