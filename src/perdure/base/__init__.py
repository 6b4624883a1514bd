"""What every layer builds on: errors, time, durations, results, retries, telemetry, settings."""
