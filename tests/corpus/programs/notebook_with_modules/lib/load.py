from lib import settings


def rows(path):
    with open(path) as f:
        for line in f:
            name, value = line.strip().split(",")
            yield name, f"{int(value) * settings.scale} {settings.unit}"
