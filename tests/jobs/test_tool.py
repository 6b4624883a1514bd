"""What a model is told about steps and jobs that are its tools."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct
from pydantic import BaseModel

from perdure import App, JobContext, StepContext, Tools
from perdure.errors import DefinitionError

app = App("sqlite:///never_opened.db")


class Place(Struct):
    city: str


class Person(BaseModel):
    name: str
    boss: "Person | None" = None


@app.step
async def search(
    ctx: StepContext,
    words: str,
    near: list[Place],
    kind: Literal["page", "image"] = "page",
    *,
    limit: Annotated[int, Meta(ge=1, description="At most so many.")] = 3,
) -> list[str]:
    """Search the web.

    It takes a while.

    Args:
        words: What to search for,
            in English.
        near (list): Where.
        limit: The docstring says something else.

    Returns:
        Pages.
    """
    return []


@app.step(name="mail.send", description="Send a mail.")
async def send(text: str) -> None:
    """Nobody reads this."""


@app.job
async def research(ctx: JobContext, who: Person) -> str:
    return who.name


PARAMETERS = {
    "type": "object",
    "properties": {
        "words": {"type": "string", "description": "What to search for, in English."},
        "near": {
            "type": "array",
            "items": {
                "title": "Place",
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
            "description": "Where.",
        },
        "kind": {"enum": ["image", "page"], "default": "page"},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": "At most so many.",
            "default": 3,
        },
    },
    "required": ["words", "near"],
    "additionalProperties": False,
}
ABOUT = "Search the web.\n\nIt takes a while."


def test_a_step_is_described_to_a_model_by_its_types_and_its_docstring() -> None:
    tools = Tools([search])
    assert tools.schemas("anthropic") == [
        {"name": "search", "description": ABOUT, "input_schema": PARAMETERS}
    ]
    assert tools.schemas("mcp") == [
        {"name": "search", "description": ABOUT, "inputSchema": PARAMETERS}
    ]
    function = {"name": "search", "description": ABOUT, "parameters": PARAMETERS}
    assert tools.schemas() == [{"type": "function", "function": function}]
    assert tools.schemas("openai-responses") == [{"type": "function", "strict": False, **function}]


def test_a_description_of_its_own_counts_and_a_name_is_one_that_providers_accept() -> None:
    (told,) = Tools([send]).schemas("mcp")
    assert (told["name"], told["description"]) == ("mail_send", "Send a mail.")
    assert Tools({"write": send}).names == ("write",)


def test_a_recursive_type_is_told_as_far_as_it_is_not_recursive() -> None:
    (told,) = Tools([research]).schemas("mcp")
    who = told["inputSchema"]["properties"]["who"]
    assert who["properties"]["name"]["type"] == "string"
    assert "$ref" not in str(told)


def test_tools_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(DefinitionError, match="the name 'search'"):
        Tools([search, search])
    with pytest.raises(DefinitionError, match="a step or a job"):
        Tools([print])  # type: ignore[list-item]
