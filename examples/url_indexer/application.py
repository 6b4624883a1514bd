"""The application: what runs, and what restarts it."""

from collections import Counter

from examples.url_indexer.index import NAME as INDEX
from examples.url_indexer.runner import FETCHERS
from perdure.otp import Agent, Application, Supervisor, TaskSupervisor


class App(Application):
    """The supervision tree of the indexer."""

    async def start(self) -> Supervisor:
        """Start the tree."""
        children = [TaskSupervisor.child(name=FETCHERS), Agent.child(Counter, name=INDEX)]
        return await Supervisor.start_link(
            [Supervisor.child(children, name="App.Supervisor")], name="App.Root"
        )
