"""Hosts: processes on other threads and in other OS processes, with the same verbs."""

from perdure.process.hosts.host import ProcessHost

__all__ = ["ProcessHost"]
