"""The HTTP API, the page, and everything else that `app.asgi()` serves: one ASGI app."""
