class Stop(Exception):
    pass


class Callback:
    def on_step(self, trainer, step, loss):
        pass


class EarlyStop(Callback):
    tolerance = 0.05

    def __init__(self, patience):
        self.patience = patience
        self.best = float("inf")
        self.bad = 0

    def on_step(self, trainer, step, loss):
        if loss < self.best - self.tolerance:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.bad >= self.patience:
            raise Stop(f"no progress at step {step}")
