"""People: questions and answers, budgets, decisions through the API, and alerts."""
