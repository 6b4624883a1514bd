"""Benchmarks: Perdure beside its peers in one run, and the length of its own walks.

``python -m bench NAME`` from the root of the repository.
"""
