"""Durable jobs: Perdure, the least code that keeps its promise, and its peers, on one disk.

The job is the same for all: steps in a row, each of which does nothing but leave a mark,
and whose result is durable before the next one starts.
"""
