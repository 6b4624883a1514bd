"""Entries: hosts, processes and services that are declared in `_index.yaml` files."""
