"""What keeps a store right and small: search, invalidation, pins, and ``gc``. Each change is a plan first.

Maintainer(store).plan(Selector(stages=("build",), older_than=30 * 86400)).apply()
Maintainer(store, max_size=20 << 30).collect(dry_run=True)
"""

from __future__ import annotations

from cachec.maintain.catalogue import Item
from cachec.maintain.collect import Collected
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.plans import Applied, Chosen, InvalidationPlan
from cachec.maintain.selector import Selector

__all__ = ["Applied", "Chosen", "Collected", "InvalidationPlan", "Item", "Maintainer", "Selector"]
