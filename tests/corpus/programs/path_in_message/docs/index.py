from pathlib import Path

import cachec

cache = cachec.Cache()
ROOT = Path(__file__).resolve().parent.parent


def heading(path):
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            return line.removeprefix("# ")
    return None


@cache.stage
def index() -> list[tuple[str, str]]:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [(page.relative_to(ROOT).as_posix(), heading(page)) for page in pages]


if __name__ == "__main__":
    for page in index():
        print("RESULT", *page)
