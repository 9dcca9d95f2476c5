"""What everything stands on: raw files, hashing, logs, installed wheels."""

import sys
import time

#: The version of cachec: here, where every room can have it; ``cachec.__version__`` is this one.
__version__ = "0.1.0"

#: The names of the modules that were imported before cachec, and when cachec was, in seconds of Unix time as file
#: systems tell it (CLOCK_REALTIME_COARSE of linux/time.h): every other module was executed after that.
IMPORTED_BEFORE = frozenset(sys.modules)
IMPORTED_AT = time.clock_gettime(5)
