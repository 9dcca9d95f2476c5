import argparse

from encoding import word

CODES = {"add": 0x01, "mul": 0x02, "nop": 0x00}

parser = argparse.ArgumentParser()
parser.add_argument("source")
parser.add_argument("-o", dest="output")
parser.add_argument("-O", dest="level", type=int)
args = parser.parse_args()

with open(args.source) as source, open(args.output, "wb") as output:
    for line in source:
        name, value = line.split()
        if args.level and name == "nop":
            continue
        output.write(word(CODES[name], int(value)))
