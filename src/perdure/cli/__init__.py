"""The command line: `perdure`."""
