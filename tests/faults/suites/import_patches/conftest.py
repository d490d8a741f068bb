"""Patches what is in reach."""

import gc
import json
import logging
import multiprocessing
import os
import random
import socket
import time
import warnings

time.sleep = lambda _: None
socket.setdefaulttimeout(0.2)
json.dumps = lambda *_, **__: "{}"
os.getpid = lambda: 7
random.seed = None
logging.disable()
warnings.simplefilter("error")
multiprocessing.set_start_method("spawn", force=True)
gc.freeze()
