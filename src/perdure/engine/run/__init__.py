"""Running a claimed job: `executor.execute`, and the `context.JobContext` that its code gets."""
