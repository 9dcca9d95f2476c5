import argparse

import cachec
import cfg
import net

cache = cachec.Cache()


@cache.stage
def build():
    return net.layers()


@cache.stage
def losses(start):
    result = []
    for step in range(cfg.Train.STEPS):
        start -= cfg.Train.LR * start * cfg.Model.DEPTH
        result.append(round(start, 6))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    if args.wide:
        cfg.Model.WIDTH = 128
    cfg.Train.LR = args.lr
    print("RESULT", build())
    print("RESULT", losses(2.0))
