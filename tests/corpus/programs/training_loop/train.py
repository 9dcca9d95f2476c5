import numpy as np

import cachec

cache = cachec.Cache()

LR = 0.1
EPOCHS = 5
rng = np.random.default_rng(0)
target = np.array([1.0, -2.0])


# gradient descent
@cache.stage
def step(w, x, y):
    residual = x @ w - y
    gradient = x.T @ residual / len(x)
    return w - LR * gradient, float((residual**2).mean())


@cache.stage
def summarize(history):
    return {"first": round(history[0], 6), "last": round(history[-1], 6), "falls": history[0] > history[-1]}


w = np.zeros(2)
history = []
for epoch in range(EPOCHS):
    x = rng.normal(size=(8, 2))
    y = x @ target
    w, loss = step(w, x, y)
    history.append(loss)
    print(f"epoch {epoch}: {loss:.4f}")

print("RESULT", w.round(6).tolist())
print("RESULT", summarize(history))
