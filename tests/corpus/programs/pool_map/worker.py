PENALTY = 3


def score(config):
    tile, unroll = config
    with open("bias.txt") as f:
        bias = int(f.read())
    return 1024 // tile * unroll + PENALTY * tile + bias
