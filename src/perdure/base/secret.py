"""Secrets: a wrapper for values that are never printed or stored, and redaction of texts.

Texts that are kept or shown (errors, logs, details) may contain secrets that are not wrapped in
`Secret`. A secret cannot be recognised by its looks alone, but the errors of clients and drivers
have them in the same few places: the user part and the query of a URL, `password=…` of a connection
string, headers, fields with telling names, and tokens with the prefix of their issuer.
"""

import hmac
import re
from functools import lru_cache
from typing import Final, Generic, NoReturn, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """A password or a token: only `reveal` returns it.

    The codec refuses it, so it cannot reach a journal: read it inside the step that needs it.
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def reveal(self) -> T:
        """Return the value itself."""
        return self.__value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = repr(self.__value), repr(other.reveal())  # pyright: ignore[reportUnknownArgumentType]
        return hmac.compare_digest(mine.encode(), theirs.encode())

    __hash__ = None  # pyright: ignore[reportAssignmentType]  as a dict key it would be printed

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Secret cannot be pickled or copied: pass the name under which it is kept instead"
        )


REMOVED: Final = "[removed]"

_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")

# Secrets by the words of their names, run together: `access_token`, `clientSecret`, `x-api-key`.
_SECRETS: Final = frozenset(
    {
        "accesskey", "accesstokens", "accountkey", "accountnumber", "apikey", "apikeys",
        "apitokens", "auth", "authkey", "authorization", "backupcodes", "bban", "bearer",
        "cardnumber", "connectionstring", "connstr", "cookie", "cookies", "credential",
        "credentials", "csrf", "cvc", "cvv", "databaseurl", "dsn", "encryptionkey", "iban", "ibans",
        "jwt", "masterkey", "mnemonic", "otp", "passcode", "passphrase", "passwd", "password",
        "passwords", "pem", "pin", "privatekey", "pwd", "recoverycodes", "redisurl",
        "refreshtokens", "sas", "secret", "secretkey", "secrets", "servicekey", "sessionid",
        "sessionkey", "sessiontokens", "sharedkey", "sid", "sig", "signature", "signingkey",
        "sshkey", "ssn", "storagekey", "token", "totp", "webhookurl", "xsrf",
    }
)  # fmt: skip
# Those that are secrets only at the end of a name: a `card_value` is an amount.
_LAST: Final = frozenset(
    {
        "backupcode", "card", "mfacode", "pan", "pass", "recoverycode", "salt", "securitycode",
        "session", "smscode", "verificationcode",
    }
)  # fmt: skip
# Ends of single words, for names that are written without a break: `dbpassword`, `githubtoken`.
_RUN_TOGETHER: Final = (
    "accesskey", "apikey", "authorization", "cookie", "credentials", "jwt", "passphrase", "passwd",
    "password", "privatekey", "pwd", "secret", "secretkey", "signingkey", "token",
)  # fmt: skip
# Parts of names, whatever follows: `password_for_db`.
_WITHIN: Final = ("apikey", "clientsecret", "connectionstring", "password", "passwd", "privatekey",
                  "secretaccesskey", "secretkey")  # fmt: skip
# Words after a secret that say in which form it is there: `token_value`, `auth_header`, `jwt_raw`.
_FORMS: Final = frozenset(
    {
        "b64", "backup", "base64", "code", "codes", "current", "encoded", "encrypted", "hash",
        "header", "headers", "hex", "new", "old", "plain", "plaintext", "previous", "raw", "str",
        "string", "value", "values",
    }
)  # fmt: skip
# Last words of names that describe a secret without holding it: `password_length`, `secret_name`.
_ABOUT: Final = frozenset(
    {
        "at", "budget", "count", "expires", "expiry", "hint", "kind", "length", "limit", "name",
        "policy", "required", "strength", "ttl", "type", "usage", "version",
    }
)  # fmt: skip
_MOST_WORDS: Final = 3  # of one secret: "secret access key"

# Numbers of accounts and cards: whoever decides about a payment compares their last characters.
_ACCOUNTS: Final = frozenset({"accountnumber", "bban", "cardnumber", "iban", "pan"})


@lru_cache(maxsize=1024)  # every line of every log passes through here, with the same few names
def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret, in any spelling of the name."""
    words = _words(name)
    if not words or words[-1] in _ABOUT:
        return False
    if any(part in "".join(words) for part in _WITHIN):
        return True
    held = _without_form(words)
    return _ends_in(words, _LAST) or _ends_in(held, _SECRETS) or held[-1].endswith(_RUN_TOGETHER)


@lru_cache(maxsize=1024)
def is_account_name(name: str) -> bool:
    """Whether a field of this name holds the number of an account or a card."""
    return _ends_in(_without_form(_words(name)), _ACCOUNTS)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _without_form(words: list[str]) -> list[str]:
    while len(words) > 1 and (words[-1] in _FORMS or words[-1].isdigit()):
        words = words[:-1]
    return words


def _ends_in(words: list[str], known: frozenset[str]) -> bool:
    return any("".join(words[-count:]) in known for count in range(1, _MOST_WORDS + 1))


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
    r"|whsec_[\w+/=]{8,}|SG\.[\w\-]{16,}\.[\w\-]{16,}|npm_\w{20,}|hf_\w{20,}|pd[rk]_[\w\-]{20,}"
    r")"
)
# After these names, a colon without quotes is followed by a value, not by a sentence.
_PLAIN_ENDS: Final = ("password", "passwd", "pwd", "passphrase", "secret", "apikey", "accesskey")


def without_secrets(text: str) -> str:
    """Return a text with `[removed]` in place of secrets; takes linear time."""
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
        # Decide before reading the value: a text of many names must not take long.
        opening = text[found.end() : found.end() + 1]
        if not _is_given(found["name"], found["between"], opening):
            continue
        if (value := _VALUE.match(text, found.end())) is not None:
            kept += (text[end : found.end()], REMOVED)
            end = value.end()
    return "".join((*kept, text[end:]))


def _is_given(name: str, between: str, opening: str) -> bool:
    """Whether a value follows the name, and not the rest of a sentence."""
    if "=" in between:
        return True
    if opening in ("'", '"'):
        # Of two quoted texts separated by a comma, the first is a name.
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
        at = rest.rindex("@")  # a password with a slash that is not percent-encoded
    else:
        return rest
    user, colon, _ = rest[:at].partition(":")
    if scheme.startswith("http"):  # the user may be the key
        return f"{REMOVED}@{rest[at + 1 :]}"
    return f"{user}:{REMOVED}@{rest[at + 1 :]}" if colon else rest


def _hides(option: str) -> bool:
    """Whether an option of a store's URL holds a secret: `listen_url` is a URL with a password."""
    return option == "listen_url" or is_secret_name(option)


# What a text may be if no name says so. A word or a number in a query is neither a password nor a
# key; letters and digits together may be. A fragment is a place on a page more often than a key.
_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_MIXED: Final = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{6,}")
_RANDOM: Final = re.compile(
    r"(?=[A-Za-z]*\d)(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])[A-Za-z0-9]{8,}"
    r"|(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{20,}"
)


def _without_query(rest: str, *, is_store: bool) -> str:
    """Remove credentials from query and fragment; for a store's URL, by the names alone."""
    rest, sharp, fragment = rest.partition("#")
    path, mark, query = rest.partition("?")
    kept = _without_credentials(query, None if is_store else _MIXED)
    place = _without_credentials(fragment, None if is_store else _RANDOM)
    return f"{path}{mark}{kept}{sharp}{place}"


def _without_credentials(query: str, key: re.Pattern[str] | None) -> str:
    def kept(part: str) -> str:
        name, equal, value = part.partition("=")
        given = value if equal else name
        is_key = key is not None and any(map(key.fullmatch, _RUN.findall(given)))
        if not is_key and not (given and equal and _hides(name)):
            return part
        return f"{name}={REMOVED}" if equal else REMOVED

    return "".join(map(kept, re.split(r"([&;?#])", query)))
