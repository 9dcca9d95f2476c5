import logging

import cachec

log = logging.getLogger(__name__)
cache = cachec.Cache()

LIMIT = 10
SIZES = {"conv": 6, "relu": 1, "pool": 2, "dense": 5}


@cache.stage
def partition(nodes):
    log.info("partitioning %d nodes", len(nodes))
    parts, current, used = [], [], 0
    for node in nodes:
        if used + SIZES[node] > LIMIT:
            log.debug("cut before %s", node)
            parts.append(current)
            current = [node]
            used = SIZES[node]
        else:
            current.append(node)
            used += SIZES[node]
    parts.append(current)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("parts: %s", parts)
    return parts
