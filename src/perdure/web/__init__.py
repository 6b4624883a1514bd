"""The operator's edge: the HTTP API, live events, the page, and who may do what."""
