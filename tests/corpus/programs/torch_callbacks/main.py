from trainer import Trainer, callbacks

import cachec

cache = cachec.Cache()


class Recorder(callbacks.Callback):
    def __init__(self):
        self.rows = []

    def on_step(self, trainer, step, loss):
        self.rows.append((step, round(loss, 4)))


@cache.stage(tools=["torch"])
def run(steps: int, patience: int) -> tuple[list[tuple[int, float]], str]:
    recorder = Recorder()
    trainer = Trainer(callbacks=[recorder, callbacks.EarlyStop(patience)])
    reason = trainer.fit(steps)
    return recorder.rows, reason


if __name__ == "__main__":
    rows, reason = run(6, 2)
    print("RESULT", rows[-1], reason)
    rows, reason = run(3, 10)
    print("RESULT", rows, reason)
