from dataclasses import dataclass

import numpy as np

PENALTY = 50.0


@dataclass(frozen=True)
class Machine:
    l1: int = 4096
    line: int = 64


def traffic(shape, tile, machine):
    m, n, k = shape
    tm, tn = tile
    loads = (m // tm) * (n // tn) * k * (tm + tn)
    used = 4 * tm * tn
    over = max(0.0, np.log2(used / machine.l1)) * PENALTY
    return float(loads / machine.line * (1 + over))
