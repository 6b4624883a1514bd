"""Entries: hosts, processes and services that are declared in `_index.yaml` files."""

from perdure.entries.load import Loaded, load_entries, load_yaml
from perdure.entries.service import Service, ready

__all__ = [
    "Loaded",
    "Service",
    "load_entries",
    "load_yaml",
    "ready",
]
