"""A run and what it writes: journal, ledger, leases, fenced writes, and how a run ends."""
