"""A fake mail server, which converts files, too."""

from examples.onboarding.model import Mail


class Gateway:
    """Sends a mail once for each key, however often it is called."""

    def __init__(self) -> None:
        self.sent: dict[str, Mail] = {}

    async def send(self, mail: Mail, key: str) -> str:
        self.sent.setdefault(key, mail)
        return f"mail {1 + list(self.sent).index(key)} to {mail.to}"

    async def convert(self, name: str) -> str:
        return f"{name}.pdf"


GATEWAY = Gateway()
