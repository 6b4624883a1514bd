"""People: questions and answers, budgets, decisions by the API, and alerts."""
