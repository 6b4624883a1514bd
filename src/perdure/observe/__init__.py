"""Metrics, traces and structured logs: listeners of telemetry events."""
