"""Approval channels and alerts: Slack, e-mail, webhooks, and the web pages of mail links."""
