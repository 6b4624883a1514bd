"""The domain of durable jobs: pure values and decisions, without I/O."""
