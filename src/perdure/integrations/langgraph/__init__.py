"""LangGraph with Perdure: checkpointer, long-term memory, durable graphs and agents in jobs.

It needs `perdure[langgraph]`.
"""

from perdure.integrations.langgraph.agent import PerdureMiddleware
from perdure.integrations.langgraph.durable_node import answer_of_people
from perdure.integrations.langgraph.graph import run_graph
from perdure.integrations.langgraph.saver import PerdureSaver
from perdure.integrations.langgraph.store import PerdureStore

__all__ = [
    "PerdureMiddleware",
    "PerdureSaver",
    "PerdureStore",
    "answer_of_people",
    "run_graph",
]
