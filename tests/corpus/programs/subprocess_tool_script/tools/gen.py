import json
import os
import sys

from common import constant

with open(os.path.join(os.path.dirname(__file__), "spec.txt")) as f:
    ops = f.read().split()

print(json.dumps({"kind": sys.argv[2], "stride": 2, "ops": [constant(op) for op in ops]}))
