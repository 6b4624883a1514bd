"""The worker: claims jobs, renews their leases, does periodic work; see `worker.working`."""
