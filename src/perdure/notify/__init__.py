"""Telling people, and hearing their answers: Slack, e-mail, web hooks, and the page of a link."""
