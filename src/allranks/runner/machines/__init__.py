"""Distributes jobs over CI machines, by a plan that each machine checks before use."""
