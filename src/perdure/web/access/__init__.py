"""Who may do what over HTTP: principals, tokens, sessions, limits, and the store of one tenant."""
