"""At import, threads are started, one of which ends this process later."""

import os
import threading

threading.Timer(3, os._exit, [0]).start()
