"""An order of three steps, each of which can be undone: payment, stock, mail."""
