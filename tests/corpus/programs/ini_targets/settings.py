import configparser

parser = configparser.ConfigParser()
parser.read("targets.ini")


def flags(target):
    section = parser[target]
    return [parser.get(target, "opt", fallback="-O2"), *section["flags"].split()]


def width(target):
    return parser.getint(target, "width")
