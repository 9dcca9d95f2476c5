import yaml

from net import budget


def kib(loader, node):
    return int(loader.construct_scalar(node)) * 1024


yaml.SafeLoader.add_constructor("!kib", kib)

if __name__ == "__main__":
    print("RESULT", budget("net.yaml"))
