import random

import numpy as np


def batch(seed, n):
    rng = np.random.default_rng(seed)
    return np.round(rng.uniform(-1, 1, size=n), 6)


def order(seed, n):
    return random.Random(seed).sample(range(n), n)


def pick(seed, names):
    random.seed(seed)
    return random.choice(names), random.random() < 0.5
