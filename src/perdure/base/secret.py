"""A value that is never printed and never stored."""

import hmac
import re
from typing import Final, Generic, NoReturn, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """A password, a token: `reveal` gives it, nothing else does.

    The codec refuses it, so it cannot reach a journal:
    read secrets inside of the step that needs them.
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def reveal(self) -> T:
        """Give the value itself."""
        return self.__value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = repr(self.__value), repr(other.reveal())  # pyright: ignore[reportUnknownArgumentType]
        return hmac.compare_digest(mine.encode(), theirs.encode())

    __hash__ = None  # pyright: ignore[reportAssignmentType]  a key of a dict would be printed with it

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is neither pickled nor copied: pass the place where it is kept")


# Take secrets out of texts that are kept or shown: errors, logs, details; pure.
#
# Nobody can tell a secret by its looks alone. But errors of clients and drivers have the same few
# places for them: the user part and the query of a URL, `password=…` of a connection string,
# headers, fields whose names say it, and tokens that begin as their issuers let them begin.

REMOVED: Final = "[removed]"

_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")

# Whole names; letters and digits only, in lower case.
_EXACT: Final = frozenset(
    {
        "auth", "card", "cookies", "cvc", "cvc2", "cvv", "cvv2", "iban", "mnemonic", "otp", "pan",
        "pass", "pem", "pin", "salt", "session", "sid", "sig", "ssn", "totp", "sas",
    }
)  # fmt: skip
# What names end with: `access_token`, `clientSecret`, `x-api-key`, `DATABASE_URL`.
_ENDS: Final = (
    "accesskey", "accountkey", "accountnumber", "apikey", "authkey", "authorization", "bearer",
    "cardnumber", "connectionstring", "connstr", "cookie", "credential", "credentials", "csrf",
    "databaseurl", "dsn", "encryptionkey", "jwt", "masterkey", "passcode", "passphrase", "passwd",
    "password", "privatekey", "pwd", "redisurl", "secret", "secretkey", "servicekey", "sessionid",
    "sharedkey", "signature", "signingkey", "sshkey", "storagekey", "token", "webhookurl", "xsrf",
)  # fmt: skip
# … or have within: `aws_secret_access_key_old`, `passwordHash`.
_WITHIN: Final = ("apikey", "clientsecret", "connectionstring", "password", "passwd", "privatekey",
                  "secretaccesskey", "secretkey")  # fmt: skip
# The last word says that it is about a secret, and none: `password_length`, `secret_name`.
_ABOUT: Final = frozenset(
    {
        "budget", "count", "expires", "expiry", "hint", "kind", "length", "limit", "name",
        "policy", "required", "ttl", "type", "usage", "version",
    }
)  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Whether the name of a field says that its value is a secret, however it is spelled."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _ABOUT:
        return False
    joined = "".join(words)
    return (
        joined in _EXACT
        or words[-1] in _EXACT
        or joined.endswith(_ENDS)
        or any(part in joined for part in _WITHIN)
    )


_QUOTED: Final = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_STORES: Final = frozenset({"postgres", "postgresql", "sqlite"})  # their options are known
_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
_URL: Final = re.compile(r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]{0,30})://([^\s'\"<>\\`]+)")
_HEADER: Final = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s{0,3}[:=,]"
    r"(?!\s{0,3}b?\[removed\])\s{0,3}(?:b(?=['\"]))?)"
    rf"({_QUOTED}|[^\r\n'\"]+)"
)
_NAMED: Final = re.compile(
    r"(?<![\w.\-])(?P<name>[A-Za-z_][\w.\-]{0,60})"
    r"(?P<between>['\"]?\s{0,3}(?:=>|[:=,])\s{0,3}(?:b(?=['\"]))?)"
)
_VALUE: Final = re.compile(rf"{_QUOTED}|[^\s,;&'\"(){{}}\[\]<>]+")
_SCHEME: Final = re.compile(
    r"(?i)\b(bearer|basic|digest|apikey)(\s{1,3})(?=\S*[0-9=._\-]|\S{20})[A-Za-z0-9._~+/=\-]{6,}"
)
_SHOWN_INPUT: Final = re.compile(r"(input_value=)[^\n]{0,200}?(?=, input_type=)")  # pydantic's
_IN_PATHS: Final = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|/bot(?=\d+:)|/api/webhooks/\d+/)[^\s'\"?#]+"
)
_SHAPES: Final = re.compile(
    r"\b(?:"
    r"[srp]k[-_][\w\-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}"
    r"|xox[a-z]-[\w\-]{8,}|xapp-[\w\-]{8,}"
    r"|AIza[\w\-]{30,}|ya29\.[\w.\-]{20,}"
    r"|eyJ[\w\-]{6,}\.[\w\-]{6,}\.[\w\-]*"
    r"|whsec_[\w+/=]{8,}|SG\.[\w\-]{16,}\.[\w\-]{16,}|npm_\w{20,}|hf_\w{20,}"
    r")"
)
# Said with a colon and without quotes, these names are followed by a value, not by a sentence.
_PLAIN_ENDS: Final = ("password", "passwd", "pwd", "passphrase", "secret", "apikey", "accesskey")


def without_secrets(text: str) -> str:
    """Give a text with `[removed]` where secrets stand, in time by its length."""
    text = _KEY_BLOCK.sub(REMOVED, text)
    text = _IN_PATHS.sub(rf"\1{REMOVED}", text)
    text = _URL.sub(_url, text)
    text = _HEADER.sub(rf"\1\2{REMOVED}", text)
    text = _SHOWN_INPUT.sub(rf"\1{REMOVED}", text)
    text = _without_fields(text)
    text = _SCHEME.sub(rf"\1\2{REMOVED}", text)
    return _SHAPES.sub(REMOVED, text)


def _without_fields(text: str) -> str:
    kept: list[str] = []
    end = 0
    for found in _NAMED.finditer(text):
        if found.start() < end or not is_secret_name(found["name"]):
            continue
        # Whether it is one shows before it is read: a text of names only must not take long.
        opening = text[found.end() : found.end() + 1]
        if not _is_given(found["name"], found["between"], opening):
            continue
        if (value := _VALUE.match(text, found.end())) is not None:
            kept += (text[end : found.end()], REMOVED)
            end = value.end()
    return "".join((*kept, text[end:]))


def _is_given(name: str, between: str, opening: str) -> bool:
    """Whether what follows a name is its value, and not the rest of a sentence."""
    if "=" in between:
        return True
    if opening in ("'", '"'):
        # Of two quoted texts with a comma between them, the first is a name.
        return ":" in between or between[0] in "'\""
    return ":" in between and "".join(_WORD.findall(name)).lower().endswith(_PLAIN_ENDS)


def _url(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    bare = _without_password(scheme.lower(), rest)
    return f"{scheme}://{_without_query(bare, is_store=scheme.lower() in _STORES)}"


def _without_password(scheme: str, rest: str) -> str:
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        at = authority.rindex("@")
    elif "@" in rest and not re.fullmatch(r"[^:]*(?::\d*)?|\[.*", authority):
        at = rest.rindex("@")  # a password with a slash that nobody has encoded
    else:
        return rest
    user, colon, _ = rest[:at].partition(":")
    if scheme.startswith("http"):  # the user may be the key
        return f"{REMOVED}@{rest[at + 1 :]}"
    return f"{user}:{REMOVED}@{rest[at + 1 :]}" if colon else rest


def _without_query(rest: str, *, is_store: bool) -> str:
    """Remove the values of a query; of a store, only those whose names say that they are secret."""
    before, mark, query = rest.partition("?")
    if not mark:
        path, sharp, _ = before.partition("#")
        return f"{path}#{REMOVED}" if sharp else path
    names = [part.partition("=") for part in re.split(r"[&;]", query.partition("#")[0])]
    kept = "&".join(
        f"{name}={value if is_store and not is_secret_name(name) else REMOVED}" if equal else name
        for name, equal, value in names
    )
    return f"{before}?{kept}" if all(equal for _, equal, _ in names) else f"{before}?{REMOVED}"
