import numpy as np

import cachec

cache = cachec.Cache()


@cache.stage
def windows(signal, size):
    frames = np.lib.stride_tricks.sliding_window_view(signal, size)
    return frames * np.hanning(size)


@cache.stage
def split(signal):
    half = len(signal) // 2
    return {"all": signal.astype(np.float16), "low": signal[:half], "high": signal[half:], "mask": signal > 2}


def main():
    signal = np.arange(6.0)
    first = windows(signal, 3)
    print("RESULT", first.round(4).tolist())
    print("RESULT", windows(signal, 3).round(4).tolist())
    parts = split(signal)
    print("RESULT", {name: (part.dtype.name, part.tolist()) for name, part in parts.items()})
    signal[1] = 5
    print("RESULT", windows(signal, 3).round(4)[0].tolist())


if __name__ == "__main__":
    main()
