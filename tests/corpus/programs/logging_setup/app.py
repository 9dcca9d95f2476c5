import logging.config

import partition

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"level": "INFO", "handlers": ["console"]},
}


def main():
    logging.config.dictConfig(LOGGING)
    graph = ["conv", "relu", "pool", "conv", "relu", "dense", "dense"]
    parts = partition.partition(graph)
    logging.getLogger("app").info("%d parts", len(parts))
    print("RESULT", parts)


if __name__ == "__main__":
    main()
