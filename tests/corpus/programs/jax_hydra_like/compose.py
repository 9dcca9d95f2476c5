"""Composes a configuration of groups, and makes the objects that it names."""

import copy
import importlib
from pathlib import Path

import yaml

CONF = Path(__file__).with_name("conf")


def compose(name="config", overrides=()):
    config = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    choices = {group: choice for entry in config.pop("defaults", []) for group, choice in entry.items()}
    for override in overrides:
        key, _, value = override.partition("=")
        if key in choices:
            choices[key] = value
    for group, choice in choices.items():
        config[group] = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text())
    for override in overrides:
        key, _, value = override.partition("=")
        if key not in choices:
            *parents, last = key.split(".")
            node = config
            for parent in parents:
                node = node[parent]
            node[last] = yaml.safe_load(value)
    return config


def instantiate(node, **extra):
    node = copy.deepcopy(node)
    module, _, attribute = node.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), attribute)(**node, **extra)
