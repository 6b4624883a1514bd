"""`perdure demo`: kills workers at the worst moments, and shows that nothing is lost."""
