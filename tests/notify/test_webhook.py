import asyncio
import base64
from collections.abc import AsyncIterator
from ipaddress import ip_address

import httpcore
import msgspec
import pytest
from msgspec.structs import replace

from perdure.base.secret import Secret
from perdure.jobs.outbox import NoticeKind
from perdure.notify.webhook import (
    Allowed,
    CheckedBackend,
    Forbidden,
    WebhookChannel,
    WebhookRefused,
    WebhookSettings,
    is_signed,
    sign,
)
from tests.support.approvals import ASKED, EDITED, NOTICE, MemoryStore
from tests.support.servers import http, speaking

SECRET = Secret("whsec_" + base64.b64encode(b"k" * 32).decode())


def channel(address: str, **more: object) -> WebhookChannel:
    settings = WebhookSettings(
        url=f"http://{address}/hook", secret=SECRET, networks=("127.0.0.0/8",), plain_http=True
    )
    return WebhookChannel(replace(settings, **more), MemoryStore())


async def test_a_hook_is_posted_with_a_signature_that_the_receiver_can_check() -> None:
    async with http((204, b"")) as site:
        assert await channel(site.address).deliver(NOTICE, ASKED, "it") == "notice-1"
        posted = await site.requests.get()
    headers = posted.headers
    id, time, signature = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    assert is_signed([SECRET], id, time, posted.body, signature)
    assert not is_signed([SECRET], id, time, posted.body + b" ", signature)
    assert not is_signed([SECRET], id, str(int(time) + 1), posted.body, signature)
    event = msgspec.json.decode(posted.body)
    assert event["type"] == "approval.asked"
    assert event["approval"]["action_hash"] == ASKED.action.hash
    assert event["approval"]["arguments"] == {"amount": 120, "to": ["kim", "lee"]}


async def test_a_hook_tells_what_was_edited_and_by_whom() -> None:
    async with http((204, b"")) as site:
        await channel(site.address).deliver(NOTICE, EDITED, "")
        event = msgspec.json.decode((await site.requests.get()).body)
    told = event["approval"]
    assert told["action_hash"] == EDITED.action.hash
    assert told["arguments"] == {"amount": 900, "note": "x"}
    assert told["arguments_before"] == {"amount": 120, "to": ["kim"]}
    assert told["edited_by"] == ["bob"]


def test_the_signature_is_that_of_the_standard() -> None:
    # The example of the Standard Webhooks specification.
    secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_hook_is_repeated_with_the_same_id() -> None:
    async with http((500, b""), (200, b"")) as site:
        with pytest.raises(WebhookRefused, match="500"):
            await channel(site.address).deliver(NOTICE, ASKED, "it")
        await channel(site.address).deliver(NOTICE, ASKED, "it")
        first, second = await site.requests.get(), await site.requests.get()
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_a_redirect_is_not_followed() -> None:
    async with http() as inner, http((302, b"")) as outer:
        outer.headers["location"] = f"http://{inner.address}/"
        with pytest.raises(WebhookRefused, match="302"):
            await channel(outer.address).deliver(NOTICE, ASKED, "it")
        assert inner.requests.empty()


async def test_an_answer_without_end_delays_nobody() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 X\r\ncontent-length: 1000000\r\n\r\nx"
        await asyncio.Event().wait()

    async with speaking(endless()) as address:
        assert await channel(address).deliver(NOTICE, ASKED, "it") == "notice-1"


async def test_headers_without_end_are_given_up_at_the_deadline() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"HTTP/1.1 102 X\r\n\r\n"

    async with speaking(endless()) as address:
        hook = channel(address)
        hook.timeout = 0.2
        with pytest.raises(TimeoutError):
            await hook.deliver(NOTICE, ASKED, "it")


async def test_an_alert_is_posted_without_an_approval() -> None:
    async with http() as site:
        alert = replace(NOTICE, kind=NoticeKind.STUCK, data=b'{"text":"since noon"}')
        await channel(site.address).deliver(alert, None, "it")
        event = msgspec.json.decode((await site.requests.get()).body)
    assert event["data"] == {"text": "since noon"}
    assert "approval" not in event


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0", "2130706433", "0x7f.1"])
async def test_nobody_is_posted_to_inside_of_our_own_house(host: str) -> None:
    async with http() as site:
        port = site.address.rpartition(":")[2]
        with pytest.raises((Forbidden, httpcore.ConnectError)):
            await channel(f"{host}:{port}", networks=()).deliver(NOTICE, ASKED, "it")
        assert site.requests.empty()


async def test_the_name_is_checked_when_it_is_connected_to() -> None:
    async with http() as site:
        port = site.address.rpartition(":")[2]
        with pytest.raises(Forbidden, match="localhost resolves to"):
            await channel(f"localhost:{port}", networks=("10.0.0.0/8",)).deliver(
                NOTICE, ASKED, "it"
            )


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "127.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:db8::1",
        # All of IANA's registries of special addresses, at both ends of each block.
        *("0.255.255.255", "10.255.255.255", "100.127.255.255", "127.255.255.255"),
        *("172.31.255.255", "192.0.0.0", "192.0.0.9", "192.0.0.10", "192.0.0.192", "192.0.0.255"),
        *("192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.255.255"),
        *("192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
        *("233.252.0.1", "239.255.255.255", "240.0.0.1", "168.63.129.16"),
        *("::7f00:1", "::ffff:0:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1"),
        *("100:0:0:1::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:1::1"),
        *("2001:2::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1"),
        *("2001:1ff:ffff::1", "2002::1", "2002:5db8:d822::1", "2620:4f:8000::1", "3fff::1"),
        *("3fff:fff:ffff::1", "4000::1", "5f00::1", "febf::1", "fec0::1", "feff::1", "fdff::1"),
        *("::ffff:192.88.99.1", "64:ff9b::c000:c0", "fd00:ec2::254", "fe80::1%1"),
    ],
)
def test_an_address_that_is_not_public_is_not_spoken_to(address: str) -> None:
    assert not Allowed().allows(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"),
        *("1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "128.0.0.1"),
        *("172.15.0.1", "172.32.0.1", "192.0.1.1", "192.88.98.1", "198.17.0.1", "223.255.255.255"),
        *("2001:200::1", "2001:db7::1", "2003::1", "2a00:1450:4001::1", "3ffe::1"),
    ],
)
def test_a_public_address_is_spoken_to(address: str) -> None:
    assert Allowed().allows(ip_address(address))


def test_a_named_network_is_spoken_to_and_its_neighbours_are_not() -> None:
    allowed = Allowed(["10.1.0.0/16", "fc00::/7"])
    assert allowed.allows(ip_address("10.1.2.3"))
    assert allowed.allows(ip_address("::ffff:10.1.2.3"))
    assert allowed.allows(ip_address("fc00::1"))
    assert not allowed.allows(ip_address("10.2.0.1"))


def test_a_name_with_one_bad_address_is_not_trusted_at_all() -> None:
    with pytest.raises(Forbidden, match=r"10\.0\.0\.1"):
        Allowed().check("evil.test", ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(Forbidden, match="nothing"):
        Allowed().check("evil.test", [])


def test_a_named_network_of_the_sixth_version_may_hold_what_is_not_public() -> None:
    assert Allowed(["2002::/16"]).allows(ip_address("2002:a00:1::"))
    assert Allowed(["fd00::/8"]).allows(ip_address("fd00::1"))
    assert Allowed(["::ffff:10.0.0.0/104"]).allows(ip_address("::ffff:10.0.0.1"))


async def test_the_next_address_of_a_name_is_tried_if_one_does_not_answer() -> None:
    async with http() as site:
        port = int(site.address.rpartition(":")[2])
        # Nobody listens at the first address.
        backend = CheckedBackend(Allowed(["127.0.0.0/8"]))
        stream = await backend.connect_any(["127.0.0.9", "127.0.0.1"], port, 5.0)
        await stream.aclose()
        with pytest.raises(httpcore.ConnectError):
            await backend.connect_any(["127.0.0.9"], port, 5.0)


# Secrets


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_ ", "whsec_!!!!", "whsec_c2hvcnQ=", " "])
def test_an_empty_or_short_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="24 bytes"):
        WebhookSettings(url="https://example.com/", secret=Secret(secret))
    with pytest.raises(ValueError, match="24 bytes"):
        is_signed([Secret(secret)], "id", "1", b"", "v1,x")
    with pytest.raises(ValueError, match="24 bytes"):
        sign(Secret(secret), "id", "1", b"")


def test_what_a_bad_secret_holds_is_not_said() -> None:
    with pytest.raises(ValueError, match="24 bytes") as error:
        WebhookSettings(url="https://example.com/", secret=Secret("whsec_c2hvcnQ="))
    assert "c2hvcnQ" not in str(error.value)


@pytest.mark.parametrize("url", ["http://example.com/", "file:///etc/passwd", "ftp://x", "x"])
def test_only_https_is_posted_to(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        WebhookChannel(WebhookSettings(url=url, secret=SECRET), MemoryStore())
