"""torch's own launcher test cases, whose ranks are started and judged as ours are."""
