"""At import, clocks are stopped for good."""

import time

time.time = lambda: 1e9
time.monotonic = time.perf_counter = lambda: 0.0
