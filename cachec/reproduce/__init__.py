"""Reproducers: one run of a stage as a small zip that others can run, without the weights.

``recipe`` the stored form of a run; ``pack`` makes the zip, ``archive`` writes and reads it; ``replay`` runs it again.
"""
