"""The stores of durable jobs: the only place that knows SQL."""
