"""The code of a job: what it may call, and how a claimed job is run to its end."""
