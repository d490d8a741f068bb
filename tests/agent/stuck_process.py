"""A process that simulates a stuck rank: it writes its stacks on a signal, and waits forever."""

import subprocess
import sys
from contextlib import contextmanager

SOURCE = """
import faulthandler, signal, sys, threading, time

def waits_elsewhere():
    time.sleep(600)

def waits_forever():
    print("ready", flush=True)
    sys.stdin.read()

if sys.argv[2] == "blocks":
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
if sys.argv[2] == "has threads":
    for _ in range(8):
        threading.Thread(target=waits_elsewhere, daemon=True).start()
faulthandler.register(int(sys.argv[3]), file=open(sys.argv[1], "a"), all_threads=True)
waits_forever()
"""


@contextmanager
def stuck_process(stack_file, number, behavior="answers"):
    """Start the process and yield its id when it is stuck."""
    arguments = [sys.executable, "-c", SOURCE, str(stack_file), behavior, str(int(number))]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()
