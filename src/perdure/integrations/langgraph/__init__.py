"""LangGraph with Perdure: a checkpointer, and durable graphs and agents in jobs.

It needs `perdure[langgraph]`.
"""

from perdure.integrations.langgraph.agent import PerdureMiddleware
from perdure.integrations.langgraph.durable_node import answer_of_people
from perdure.integrations.langgraph.graph import run_graph
from perdure.integrations.langgraph.saver import PerdureSaver

__all__ = ["PerdureMiddleware", "PerdureSaver", "answer_of_people", "run_graph"]
