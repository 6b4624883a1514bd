"""LangGraph with Perdure: a checkpointer in the store of an app; needs `perdure[langgraph]`."""

from perdure.integrations.langgraph.saver import PerdureSaver

__all__ = ["PerdureSaver"]
