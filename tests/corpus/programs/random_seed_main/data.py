import random


def split(names, share):
    names = list(names)
    random.shuffle(names)
    cut = int(len(names) * share)
    return names[:cut], names[cut:]
