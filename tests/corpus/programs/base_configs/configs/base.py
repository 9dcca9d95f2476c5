batch = 32
model = dict(depth=1, width=8)


def helper():
    return batch
