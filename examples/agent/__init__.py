"""An agent without a framework: a loop around a model, with tools that are steps."""
