"""A run of a job and its records: the lowest layer of the engine.

Steps, people, the executor and the worker all build on it: `Run`, its `Operation`s and its
`Journal` (`run`), how a run ends (`verdict`), how an attempt of a step exits early (`step_exit`),
and the effects of the job (`ledger`). It knows nothing about what steps or people do.
"""
