"""A real PgBouncer in transaction mode, in front of the PostgreSQL of the tests.

It has fewer sessions than its clients have connections: what one client leaves in a session,
another finds.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.kept_program import kept

_PORT = 6432  # only the name of a socket

_SETTINGS = """
[databases]
* = host={server} user={user}
[pgbouncer]
listen_port = {port}
listen_addr =
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = {ignored}
"""


@pytest.fixture
def pgbouncer_url(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of the same database and schema as `postgres_url`, through a pooler.

    The parameter of the fixture names what the pooler ignores when a client connects.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer on the PATH: apt-get install pgbouncer")
    base, _, schema = postgres_url.rpartition("&schema=")
    server = conninfo_to_dict(base)
    owner = Path(str(server["host"])).stat().st_uid  # the only one who may open its socket
    folder = Path(tempfile.mkdtemp(prefix="perdure-pgbouncer-"))
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        _SETTINGS.format(
            server=server["host"],
            user=server["user"],
            port=_PORT,
            folder=folder,
            ignored=getattr(request, "param", ""),
        )
    )
    for each in (folder, settings):
        os.chown(each, owner, -1)
    try:
        command = [program, "--quiet", str(settings)]  # it refuses to be root
        with kept(command, folder / f".s.PGSQL.{_PORT}", user=owner):
            host = quote(str(folder), safe="")
            yield f"postgresql://{server['user']}@/postgres?host={host}&port={_PORT}&schema={schema}"
    finally:
        shutil.rmtree(folder)
