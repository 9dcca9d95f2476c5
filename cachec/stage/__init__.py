"""Stages: the decorator, the one hit-or-miss decision, and one run of a stage. Commands import no decorator."""
