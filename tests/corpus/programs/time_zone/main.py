import time
from datetime import datetime
from zoneinfo import ZoneInfo

import cachec

cache = cachec.Cache()
STAMP = 1767225600


@cache.stage
def local(stamp):
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(stamp))


@cache.stage
def there(stamp, zone):
    return datetime.fromtimestamp(stamp, ZoneInfo(zone)).isoformat()


if __name__ == "__main__":
    print("RESULT", local(STAMP))
    print("RESULT", there(STAMP, "Europe/Zurich"))
