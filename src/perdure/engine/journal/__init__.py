"""A run of a job and what it is recorded in: the lowest room of the engine.

Steps, people, the executor and the worker all stand on it: `Run`, its `Operation`s and its
`Journal` (`run`), how a run ends (`verdict`), how an attempt of a step is left (`step_exit`), and
the effects of the job (`ledger`). It knows nothing of what steps or people do.
"""
