"""Who may do what over HTTP: principals, tokens, sessions, limits, and the door to one tenant."""
