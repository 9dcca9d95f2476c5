import sys

from experiments import EXPERIMENTS


def main(names):
    for name in names or sorted(EXPERIMENTS):
        experiment = EXPERIMENTS[name]()
        print("RESULT", name, experiment.run(experiment.width))


if __name__ == "__main__":
    main(sys.argv[1:])
