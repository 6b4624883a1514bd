"""An indexer of web pages: fetches them concurrently and counts their most frequent words.

Run it with `python -m examples.url_indexer URL… --top 20`. Its supervision tree:

    App.Root
     └── App.Supervisor
          ├── App.FetchSup      a TaskSupervisor: each fetch is a task of it, and may fail alone
          └── App.Index         an Agent: the counts; if it crashes, only it is restarted
"""

from examples.url_indexer.application import App
from examples.url_indexer.fetcher import fetch_and_tokenize, http_get
from examples.url_indexer.index import inc_tokens, top
from examples.url_indexer.runner import run
from examples.url_indexer.tokens import tokenize

__all__ = ["App", "fetch_and_tokenize", "http_get", "inc_tokens", "run", "tokenize", "top"]
