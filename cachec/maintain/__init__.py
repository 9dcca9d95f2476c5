"""What keeps a store right and small: search, invalidation, pins, and ``gc``. Each change is a plan first.

Maintainer(store).plan(Selector(stages=("build",), older_than=30 * 86400)).apply()
Maintainer(store, max_size=20 << 30).collect(dry_run=True)
"""
