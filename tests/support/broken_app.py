"""An app whose module cannot be imported."""

raise RuntimeError("this app cannot be imported")
