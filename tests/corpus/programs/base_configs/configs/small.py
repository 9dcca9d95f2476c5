_base_ = "base.py"
model = dict(depth=2, width=4)
