"""The transactions behind the port's verbs, the same for both databases."""
