"""The operations of a job: steps with their attempts and effects, waits, and undo.

`step.StepOperation` is one call of a step and `step.Attempt` one attempt of it; the user's function
gets a `step_context.StepContext`. `thread_step` and `process_step` run functions elsewhere than on
the worker's event loop.
"""
