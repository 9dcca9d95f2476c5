import os
import subprocess

import cachec

cache = cachec.Cache()

# microseconds
AWK = "{ total[$2] += $3 } END { for (name in total) print name, total[name] }"


@cache.stage
def totals(path):
    text = subprocess.check_output(f"grep '^end' {path} | awk '{AWK}' | sort", shell=True, text=True)
    return dict(line.split() for line in text.splitlines())


@cache.stage
def count(path):
    with os.popen(f"grep -c conv {path}") as pipe:
        return int(pipe.read())


print("RESULT", totals("trace.log"))
print("RESULT", count("trace.log"))
