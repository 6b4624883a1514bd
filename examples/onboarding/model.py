"""What the journal stores."""

from dataclasses import dataclass


@dataclass
class Customer:
    name: str
    address: str


@dataclass
class Profile:
    customer: Customer
    sources: list[str]
    files: list[str]


@dataclass
class Report:
    converted: list[str]


@dataclass
class Mail:
    to: str
    subject: str
    text: str


@dataclass
class Extract:
    rows: list[int]
