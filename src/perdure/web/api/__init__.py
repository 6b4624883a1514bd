"""The resources of the API: a file for each, with the handlers and the lines of the route table."""
