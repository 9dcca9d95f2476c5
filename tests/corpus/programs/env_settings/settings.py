import os

TILE = int(os.environ.get("KERNEL_TILE", "4"))
DEBUG = os.getenv("KERNEL_DEBUG", "0") != "0"
