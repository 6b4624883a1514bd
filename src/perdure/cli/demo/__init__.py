"""`perdure demo`: workers are killed at the worst moments, and nothing is lost or done twice."""
