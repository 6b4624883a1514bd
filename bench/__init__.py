"""Benchmarks: Perdure against its peers, side by side in one run.

``python -m bench NAME`` from the root of the repository.
"""
