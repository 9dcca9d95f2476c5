"""Modules for a person: as text without weights, in figures, two against each other, as a compiler's reproducer."""
