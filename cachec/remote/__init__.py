"""Stores that machines share: what one has computed, another need not.

Nothing of this is imported where no remote is configured.
"""
