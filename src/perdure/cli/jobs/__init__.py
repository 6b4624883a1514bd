"""`perdure jobs`: look at jobs, and tell them what to do."""
