import os
import sqlite3
from contextlib import closing

if os.path.exists("catalog.db"):
    os.remove("catalog.db")
with closing(sqlite3.connect("catalog.db")) as db, db:
    db.execute("CREATE TABLE models (name TEXT, size INTEGER)")
    db.executemany("INSERT INTO models VALUES (?, ?)", [("vit", 86), ("bert", 110), ("mlp", 1)])
