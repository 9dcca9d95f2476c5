"""Stages that run in a process of their own, which the tracer watches."""
