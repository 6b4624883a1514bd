"""What the operations of a job do: steps with their attempts and effects, waits, and undoing.

`step.StepOperation` is one call of a step and `step.Attempt` one attempt of it; the user's function
gets a `step_context.StepContext`. Where the function runs is the matter of `thread_step`
and `process_step`.
"""
