"""What every layer stands on: errors, time, durations, results, retries, telemetry, settings."""
