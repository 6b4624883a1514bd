"""`perdure demo`: a migration whose worker is killed again and again, and which goes on."""
