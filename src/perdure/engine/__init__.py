"""Durable execution: a worker is a supervision tree, a running job a process, a step a process."""
