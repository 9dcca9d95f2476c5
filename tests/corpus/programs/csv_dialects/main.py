import csv

import table


def main():
    csv.register_dialect("team", delimiter=";", quotechar="'")
    print("RESULT", table.costs("ops.txt"))


if __name__ == "__main__":
    main()
