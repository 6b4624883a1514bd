"""Whatever needs an optional dependency that is missing says which extra installs it."""

import subprocess
import sys

import pytest

MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
try:
    {code}
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("aiosmtplib", "import perdure.notify.mail", "e-mail needs aiosmtplib: {}[mail]'"),
        ("itsdangerous", "import perdure.notify.mail", "e-mail needs itsdangerous: {}[mail]'"),
        ("slack_sdk", "import perdure.notify.slack", "Slack needs slack_sdk: {}[slack]'"),
        ("httpx", "import perdure.notify.slack", "Slack needs httpx: {}[slack]'"),
        ("httpcore", "import perdure.notify.webhook", "a webhook needs httpcore: {}[webhook]'"),
        ("httpx", "import perdure.integrations.http", "an HTTP effect needs httpx: {}[http]'"),
        ("genai_prices", "import perdure.integrations.prices", "needs genai_prices: {}[prices]'"),
        ("pydantic_ai", "import perdure.integrations.pydantic_ai", "needs pydantic_ai: {}[pydan"),
        (
            "psycopg",
            "from perdure import App; App('postgresql://localhost/x').sync.find_jobs()",
            "PostgreSQL needs its driver: {}[postgres]'",
        ),
        (
            "redis",
            "from perdure.engine.worker.redis_hint import RedisHint; RedisHint('redis://x', 'x')",
            "a hint needs the Redis client: {}[redis]'",
        ),
    ],
)
def test_a_missing_dependency_is_named_with_its_extra(package: str, code: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", MISSING.format(package=package, code=code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.format("pip install 'perdure") in ended.stdout
