"""Bundles: entries, their artifacts and weights as one file, made from a store and added to another one."""

from cachec.bundle.adding import AddResult, add
from cachec.bundle.creating import CreateResult, create
from cachec.bundle.format import BundleError
from cachec.bundle.reading import BundleReader

__all__ = ["AddResult", "BundleError", "BundleReader", "CreateResult", "add", "create"]
