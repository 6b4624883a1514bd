"""The store: the only place with SQL. `open.open_store` makes a `store.Store`."""
