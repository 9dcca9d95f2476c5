from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import cachec

cache = cachec.Cache()
STOP = {"the", "a"}


def count(path):
    return sum(1 for word in path.read_text().split() if word not in STOP)


@cache.stage
def word_counts(folder: str) -> dict:
    paths = sorted(Path(folder).glob("*.txt"))
    with ThreadPoolExecutor(max_workers=4) as pool:
        jobs = {pool.submit(count, path): path.name for path in paths}
        found = {jobs[job]: job.result() for job in as_completed(jobs)}
    return dict(sorted(found.items()))


if __name__ == "__main__":
    print("RESULT", word_counts("docs"))
