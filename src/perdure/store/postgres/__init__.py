"""The store in a PostgreSQL database, shared by a fleet."""
