"""MCP: servers whose tools are called in durable steps, and jobs as the tasks of a server.

    tools = DurableMCP(Client("https://mail.example/mcp"))                # in the code of a job
    server = MCPServer("jobs", extensions=[PerdureTasks(app, who=who)])   # for clients of others

Needs `perdure[mcp]`.
"""

from perdure.base.extra import extra

with extra("mcp", "MCP"):
    from perdure.integrations.mcp.client import IDEMPOTENCY_KEY, DurableMCP
    from perdure.integrations.mcp.tasks import PerdureTasks

__all__ = ["IDEMPOTENCY_KEY", "DurableMCP", "PerdureTasks"]
