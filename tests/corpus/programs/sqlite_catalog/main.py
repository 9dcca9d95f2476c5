import sqlite3
from contextlib import closing
from pathlib import Path

import cachec

cache = cachec.Cache()
QUERY = "SELECT name, size FROM models WHERE size > ? ORDER BY size DESC"


@cache.stage
def large(limit):
    with closing(sqlite3.connect(Path(__file__).parent / "catalog.db")) as db:
        return db.execute(QUERY, (limit,)).fetchall()


@cache.stage
def squares(numbers):
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (n INTEGER)")
        db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in numbers])
        return db.execute("SELECT COUNT(*), SUM(n * n) FROM t").fetchone()


if __name__ == "__main__":
    print("RESULT", large(50))
    print("RESULT", squares([1, 2, 3]))
