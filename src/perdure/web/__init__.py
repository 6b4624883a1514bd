"""The HTTP API, the dashboard, and everything else that `app.asgi()` serves: one ASGI app."""
