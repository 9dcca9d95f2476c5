import numpy as np

import cachec
from layers import Dense, LeakyRelu, Sequential

cache = cachec.Cache()


@cache.stage
def evaluate(model, x):
    return model(x)


if __name__ == "__main__":
    model = Sequential(Dense(4, 3, seed=0), LeakyRelu(), Dense(3, 2, seed=1))
    x = np.linspace(-1, 1, 8).reshape(2, 4)
    print("RESULT", evaluate(model, x).round(5).tolist())
    print("RESULT", evaluate(LeakyRelu(), x).round(5).tolist())
