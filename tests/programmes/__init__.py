"""Long programmes: faults by the hundred. Each has a short version in the everyday suite."""
