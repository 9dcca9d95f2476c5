import pickle

from table import Table

with open("table.pkl", "wb") as f:
    pickle.dump(Table({"exp": 20, "div": 8}), f)
