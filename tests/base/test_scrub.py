"""Secrets in the texts of errors: URLs, connection strings, headers, fields, tokens."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base.secret import REMOVED, without_secrets

S = "Zq7xK4mW"  # the secret
T = f"{S}p2Rv9tYb3Nc6Ld{S}p2Rv9tYb3Nc6Ld"

SPELLINGS = [
    f"https://user:{S}@api.test/v1",
    f"https://{S}:@api.test/v1",
    f"https://{S}@api.test/v1",
    f"https://api.test/v1?api_key={S}",
    f"https://api.test/v1?page=3&sig={S}#part",
    f"https://api.test/v1#access_token={S}",
    f"https://api.test/v1?{S}",
    f"Location: https://api.test/reset?t={S}",
    f"postgresql://app:{S}@db/jobs",
    f"postgresql://app:%40{S}@db/jobs",
    f"postgresql://app:a/{S}@db/jobs",
    f"postgresql://db/jobs?user=app&password={S}",
    f"postgres+asyncpg://app:{S}@db/jobs",
    f"mongodb+srv://app:{S}@db/jobs",
    f"redis://:{S}@cache:6379/0",
    f"amqp://app:{S}@mq//",
    f"host=db user=app password={S} dbname=jobs",
    f"host=db password='{S} x' user=app",
    f"host=db password = {S}",
    f"Server=db;Database=jobs;User Id=app;Password={S};",
    f"DefaultEndpointsProtocol=https;AccountKey={S};EndpointSuffix=x",
    f"AWS_SECRET_ACCESS_KEY={S}",
    f"aws_secret_access_key = {S}",
    f"export GITHUB_TOKEN={S}",
    f"Authorization: Bearer {S}",
    f"authorization: Basic {S}==",
    f"Proxy-Authorization: Digest username={S}",
    f"{{'authorization': 'Bearer {S}', 'accept': '*/*'}}",
    f"[(b'Authorization', b'Bearer {S}')]",
    f"Headers({{'x-api-key': '{S}'}})",
    f"X-Api-Key: {S}",
    f"Set-Cookie: sid={S}; Path=/",
    f"cookie: a=b; session={S}",
    f'{{"password": "{S}", "name": "kim"}}',
    f'{{"client_secret":"{S}"}}',
    f"{{'apiKey': '{S}'}}",
    f"connect(host='db', pwd='{S}')",
    f"Login(name='kim', password='{S}')",
    f"password: {S}",
    f"secret: {S}",
    f"jwt={S}",
    f"dsn='{S}'",
    f"the bearer {S}1 was refused",
    f"sk_live_{T}",
    f"sk-ant-{T}",
    f"ghp_{T}",
    f"xoxb-123-{S}",
    f"whsec_{T}",
    f"eyJhbGciOiJIUzI1NiJ9.{T}.{T}",
    f"https://hooks.slack.com/services/T1/B1/{S}",
    f"https://api.telegram.org/bot12:{S}/sendMessage",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{S}",
    f"[type=string_too_short, input_value='{S}', input_type=str]",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_secret_is_taken_out_of_a_text(text: str) -> None:
    for around in ("{}", "it failed: {}", "({}) and on", "a, {}", '"x" {}'):
        kept = without_secrets(around.replace("{}", text))
        assert S not in kept
        assert REMOVED in kept
        assert without_secrets(kept) == kept


@pytest.mark.parametrize(
    "text",
    [
        "Unexpected token: expected a name",
        "KeyError: 'password'",
        'password authentication failed for user "app"',
        "https://medium.com/@user/post",
        "postgresql://app@db/jobs",
        "max_tokens=100, tokens=7, token_count=3",
        "basic understanding, bearer instruments",
        "the secret of success",
        "x = 1, y: 2",
        "call(key='order-7', id=3)",
        "http://[::1]:8080/path",
        "at 12:30:00, ratio 3:4",
        "see https://docs.test/guide#retries",
        "see https://docs.test/guide.html#section-3.2",
        "https://git.test/a/b.py#L20-L31",
        "https://ops.test/#/jobs/7",
        "https://api.test/v1?page=3&state=failed&since=2026-01-31",
        "https://api.test/v1?max_tokens=100#token_count",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_the_errors_of_httpx_say_no_key() -> None:
    request = httpx.Request("GET", f"https://u:{S}@api.test/v1?api_key={S}&q=1")
    with pytest.raises(httpx.HTTPStatusError) as caught:
        httpx.Response(401, request=request).raise_for_status()
    assert S in str(caught.value)
    kept = without_secrets(str(caught.value))
    assert S not in kept
    assert "api.test/v1?api_key=" in kept


@given(st.text(st.sampled_from("a=:,'\"/@?#&;%[] \n\\password-BEGINbearer0"), max_size=80))
def test_to_do_it_twice_changes_nothing_more(text: str) -> None:
    once = without_secrets(text)
    assert without_secrets(once) == once


@pytest.mark.parametrize(
    "piece", ["input_value=", ":token", "token:", "password=https://", "a.", "x=", "cookie:", '\\"']
)
def test_a_long_text_made_to_be_slow_is_not(piece: str) -> None:
    # By the square of its length this would take minutes, which no test is given.
    without_secrets(piece * (300_000 // len(piece)))
