"""What the adapters of all agent frameworks share: model calls and tool calls as durable steps.

An adapter passes each call of its framework to these functions. The result is stored, so that a
replay of the framework's own loop finds it instead of making the call again.

    ctx = job("pydantic-ai")                     # None outside a job; the log says so once
    await model_call(ctx, ModelCall(…), body)    # a budget, retries after outages, telemetry
    await tool_call(ctx, "mail", body, key=…, arguments=…, options=ToolOptions.of(metadata))
    await ask(ctx, "mail", arguments, key=…)     # a person: yes, edited arguments, or no

**Names.** A model call is a step `call:chat:NAME`, a tool call `call:tool:NAME`, a question
about a tool `call:approve:NAME`. The key of a tool's step is the id of the call, if it has one.

**What is stored of a model call** is its output, in which `gen_ai` is the same for all frameworks,
for people, and `value` is the framework's own, for the replay:

    {"gen_ai": {"provider": "openai", "model": "gpt-5", "answered_by": "gpt-5-2026", "agent": "ann",
                "finish_reason": "stop", "cost_usd": 0.0021 or null,
                "usage": {"input_tokens": 900, "output_tokens": 40,
                          "cache_read_tokens": 512, "cache_write_tokens": 0},
                "input": [message, …],           the messages that this call adds to the history
                "output": [message, …]},         the answer
     "value": …}

A message is that of OpenTelemetry's GenAI conventions, `{"role": "user", "parts": [part, …]}`, with
the roles "system", "user", "assistant" and "tool", and these parts, whose texts are cut if long:

    {"type": "text", "content": "…"}             {"type": "reasoning", "content": "…"}
    {"type": "tool_call", "id": "…", "name": "…", "arguments": …}
    {"type": "tool_call_response", "id": "…", "response": …}

So the transcript of an agent is the inputs and outputs of its model steps, in their order. The
input of a tool's step is the arguments of the call, so gates and approvals see them.

**Errors.** Only outages of models, and of effects whose receiver recognises a repeated call, are
retried, and only here: clients and frameworks must not retry. A long outage parks the job.
The exceptions in `raises` come back as their own type at every replay; any other is a `StepFailed`.
No code ever gets the error of an effect that may have happened, since the model could respond with
another call: the job waits for a person.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, cast, get_args
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct, field

from perdure.base.codec import digest
from perdure.base.duration import Duration
from perdure.base.errors import (
    ApprovalRejected,
    DefinitionError,
    JobError,
    NotInJob,
    PayloadTooLarge,
    StepTimeout,
    Unavailable,
)
from perdure.base.retry import Retry
from perdure.engine.journal.guard import unguarded
from perdure.engine.journal.run import branch
from perdure.engine.run.context import JobContext, budget_limits, current_job
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.budget import ModelUsage
from perdure.jobs.definition import ASK, CHAT, CLOSURE, LONGEST_NAME, TOOL, scope
from perdure.jobs.effect import InDoubt
from perdure.jobs.failure import Raises
from perdure.jobs.output import DEFAULT_TOPIC
from perdure.jobs.policy import OUTAGE, asked_wait, http_status, is_outage

try:  # without the extra, costs are unknown unless the user knows them
    from perdure.integrations.prices import price_of
except ModuleNotFoundError:
    price_of = None

_log = logging.getLogger("perdure.integrations")

Message: TypeAlias = dict[str, Any]
Price: TypeAlias = Callable[[ModelUsage], float | None]

ONCE: Final = Retry(attempts=1)
# As after any outage; a call without an answer in time is made again, too.
MODEL_RETRY: Final = Retry(
    attempts=OUTAGE.attempts,
    initial_delay=OUTAGE.initial_delay,
    factor=OUTAGE.factor,
    max_delay=OUTAGE.max_delay,
    jitter=OUTAGE.jitter,
    on=(Unavailable, StepTimeout),
)
MODEL_TIMEOUT: Final = "15m"
GUESSED_OUTPUT: Final = 1024  # tokens that are set aside if the call does not limit them
_LETTERS_PER_TOKEN: Final = 3  # rather too many tokens than too few
LONGEST_PART: Final = 8 * 1024  # characters of a text in the transcript

# Where we are


_told: set[str] = set()


def job(adapter: str) -> JobContext | None:
    """Return the job whose code is running; None outside a job, which is logged once.

    Args:
        adapter: The adapter that asks, for the log.
    """
    try:
        return current_job()
    except NotInJob:
        if adapter not in _told:
            _told.add(adapter)
            _log.warning(
                "%s is not durable here, and nothing is recorded: it works in the code of a job, "
                "not outside of one nor inside a step",
                adapter,
            )
        return None


def in_job() -> bool:
    """Whether the code of a job is running here."""
    return isinstance(scope.get(), JobContext)


def allowed(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a function that the guard lets connect in the code of a job: repeats do no harm."""

    async def called(*args: Any, **kwargs: Any) -> Any:
        with unguarded():
            return await fn(*args, **kwargs)

    return called


_keys: WeakKeyDictionary[JobContext, Counter[str]] = WeakKeyDictionary()


def key_of(ctx: JobContext, *parts: object) -> str:
    """Return a key for a step from what identifies a call, the same in every replay.

    Some models reuse the ids of the turn before, so repeated ids are numbered, separately in each
    branch of the code.
    """
    text = ".".join(str(part) for part in parts if part not in (None, ""))
    if not text.isprintable() or set(text) & set("/#") or not 0 < len(text) <= LONGEST_NAME // 2:
        text = digest(text)[:32]
    used, place = _keys.setdefault(ctx, Counter()), branch.get() + text
    used[place] += 1
    return text if used[place] == 1 else f"{text}~{used[place]}"


def _name(prefix: str, name: str) -> str:
    """Return the name of a step, without its `call:`, from any text of a framework."""
    clean = "".join(each if each.isprintable() and each not in "# /" else "_" for each in name)
    return (prefix.removeprefix(CLOSURE) + clean)[: LONGEST_NAME // 2]


# Messages


def message(role: str, *parts: Message) -> Message:
    """Return a message for the transcript."""
    return {"role": role, "parts": list(parts)}


def text_part(content: str, kind: str = "text") -> Message:
    """Return a text as a part of a message; `kind` may also be "reasoning"."""
    return {"type": kind, "content": _cut(content)}


def tool_call_part(id: str, name: str, arguments: Any) -> Message:
    """Return the request of a model to call a tool as a part of a message."""
    return {"type": "tool_call", "id": id, "name": name, "arguments": _cut(arguments)}


def tool_response_part(id: str, response: Any) -> Message:
    """Return the answer of a tool as a part of a message."""
    return {"type": "tool_call_response", "id": id, "response": _cut(response)}


def _cut(value: Any) -> Any:
    """Return a value for people to read: a long one is cut, and says so."""
    text = value if isinstance(value, str) else str(value)
    if len(text) <= LONGEST_PART:
        return value
    return f"{text[:LONGEST_PART]} … ({len(text) - LONGEST_PART:,} more characters)"


def letters(messages: Iterable[Message]) -> int:
    """Return the length of messages in characters."""
    return sum(len(str(part)) for each in messages for part in each["parts"])


# Models


class ModelCall(Struct, frozen=True, kw_only=True):
    """Everything about a model call except the function that makes it.

    Attributes:
        model: The name of the model, as its provider spells it.
        provider: The provider of the model.
        agent: The agent that calls it.
        key: Identifies the call in its job: see `key_of`.
        messages: What the call adds to the history, for the transcript.
        estimate: What it may use, set aside before the call; see `estimated`.
        price: Returns the USD of a usage, None if unknown; by default by genai-prices.
        timeout: How long one attempt may take.
        retry: When the call is repeated; by default only after outages.
        raises: Exceptions of the framework that come back as their own type.
    """

    model: str
    provider: str = ""
    agent: str = ""
    key: str | None = None
    messages: list[Message] = field(default_factory=list[Message])
    estimate: ModelUsage | None = None
    price: Price | None = None
    timeout: Duration = MODEL_TIMEOUT
    retry: Retry = MODEL_RETRY
    raises: Raises = ()


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """What a model has answered.

    Attributes:
        value: The framework's own response as plain JSON values.
        usage: What the call has used.
        messages: The answer, for the transcript.
    """

    value: Any
    usage: ModelUsage
    messages: list[Message] = field(default_factory=list[Message])


class GenAI(Struct, frozen=True, kw_only=True):
    """What people read of a stored model call, the same for all frameworks; see the module."""

    provider: str
    model: str
    answered_by: str
    agent: str
    finish_reason: str
    cost_usd: float | None
    usage: dict[str, int]
    input: list[Message]
    output: list[Message]


class ModelRecord(Struct, frozen=True):
    """What is stored of a model call."""

    gen_ai: GenAI
    value: Any


ModelBody: TypeAlias = Callable[[StepContext], Awaitable[ModelAnswer]]


def estimated(
    model: str, *, length: int, most_output: int | None, provider: str = ""
) -> ModelUsage:
    """Return what a call may use.

    Args:
        model: The model.
        length: The characters of its whole input.
        most_output: The call's own limit on output tokens, if it has one; then it never exceeds the
            budget. Otherwise an answer may cost more than was set aside for it.
        provider: The provider.
    """
    return ModelUsage(
        model=model,
        provider=provider,
        input_tokens=length // _LETTERS_PER_TOKEN + 1,
        output_tokens=GUESSED_OUTPUT if most_output is None else most_output,
    )


def provider_in(model: str) -> str:
    """Return the provider in a model's name, as gateways spell it: "anthropic/claude-sonnet-4"."""
    return model.partition("/")[0] if "/" in model else ""


def known_price(usage: ModelUsage) -> float | None:
    """Return the USD of a usage by genai-prices; None if unknown, or it is not installed."""
    try:
        return None if price_of is None else price_of(usage)
    except DefinitionError:
        return None


async def budget_decides() -> bool:
    """Whether the budget of the running job says how long an agent may go on.

    Then the limits that frameworks have by default do not end a run; one that a user has set does.
    """
    return in_job() and (await budget_limits(current_job())).ends_loops


async def model_call(ctx: JobContext, call: ModelCall, body: ModelBody) -> Any:
    """Call a model in a step; return the `value` of its answer, or the recorded one.

    Before the call, what it may use is set aside in the budget of the job; afterwards, what it has
    used is settled. At a limit, a person is asked first.

    Raises:
        DefinitionError: The budget has a limit in USD, and the price of the model is unknown.
        StepFailed: It failed for good.
    """
    price = call.price or known_price
    usage = call.estimate or ModelUsage(model=call.model, provider=call.provider)
    has_limit = (await budget_limits(ctx)).usd is not None
    cost = price(usage) if has_limit else 0.0
    if cost is None:
        tables = " to genai-prices" if price_of else " without genai-prices (`perdure[prices]`)"
        raise DefinitionError(
            f"the budget has a limit in USD, and the price of {call.model!r} is unknown{tables}: "
            "pass `price`, a function from its usage to USD, or limit tokens instead"
        )

    async def attempt(step: StepContext) -> ModelRecord:
        async with step.spend(usd=cost, tokens=usage.tokens, calls=1) as spent:
            try:
                answer = await body(step)
            except Exception as error:
                if http_status(error) is not None:  # an error was the answer: nothing was used
                    await spent.settle(usd=0.0, tokens=0)
                raise as_outage(error) from error
            used = msgspec.structs.replace(answer.usage, agent=call.agent)
            paid = price(used)
            await spent.settle(usd=paid or 0.0, usage=used)
        return _record(call, answer, paid)

    step = ctx.call(
        _name(CHAT, call.agent or call.model),
        attempt,
        key=call.key,
        timeout=call.timeout,
        retry=call.retry,
        raises=call.raises,
    )
    return (await step).value


def _record(call: ModelCall, answer: ModelAnswer, paid: float | None) -> ModelRecord:
    used = answer.usage
    gen_ai = GenAI(
        provider=used.provider or call.provider,
        model=call.model,
        answered_by=used.answered_by or used.model,
        agent=call.agent,
        finish_reason=used.finish_reason,
        cost_usd=paid,
        usage={
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "cache_read_tokens": used.cache_read_tokens,
            "cache_write_tokens": used.cache_write_tokens,
        },
        input=call.messages,
        output=answer.messages,
    )
    return ModelRecord(gen_ai, answer.value)


def as_outage(error: Exception) -> Exception:
    """Return an error as `Unavailable`, if another system has failed and may recover."""
    if isinstance(error, JobError) or not is_outage(error):
        return error
    return Unavailable(f"{type(error).__name__}: {error}", asked_wait(error))


def emit(step: StepContext | JobContext | None, event: Any, *, topic: str = DEFAULT_TOPIC) -> None:
    """Emit an event of a stream, as plain JSON values, to those who follow the job live.

    It counts as a sign of life. The answer as a whole is the result of the step, so a replay emits
    nothing; another attempt discards what this one has emitted, and has another number.
    """
    if step is None:
        return
    try:
        step.emit(event, topic=topic)
    except PayloadTooLarge:  # the whole is stored with the step; only its live view is cut
        step.emit({"cut": _cut(event)}, topic=topic)


# Tools


_VALUES: Final = {
    "effect": (True, False),
    "irreversible": (True, False),
    "in_doubt": get_args(InDoubt),
}


class ToolOptions(Struct, frozen=True, kw_only=True):
    """How a tool is called; users write it as `metadata={"perdure": {"effect": True, …}}`.

    Attributes:
        inline: Not a step: the code of the tool is part of the job, and what it does (sub-agents,
            other steps) is durable by itself. Written as `{"perdure": False}`.
        effect: It changes something outside the job: the call is recorded before it is made.
        in_doubt: What follows a crash in the middle of the effect: "ask" a person, or "replay" if
            the receiver recognises a repeated call by `idempotency_key()`.
        risk: The lowest risk to assume; from "high" on, a person is asked.
        irreversible: What it does cannot be undone: a person is asked.
        timeout: How long one attempt may take.
        retry: When it is called again: a policy, or a number of attempts. By default never, except
            that an effect with `in_doubt="replay"` is repeated with the same key after outages and
            timeouts.
        raises: Exceptions of the framework that come back as their own type.
    """

    inline: bool = False
    effect: bool = False
    in_doubt: InDoubt = "ask"
    risk: str = "low"
    irreversible: bool = False
    timeout: Duration = None
    retry: Retry | None = None
    raises: Raises = ()

    @property
    def retries(self) -> Retry:
        """The policy by which it is called again."""
        may_repeat = self.effect and self.in_doubt == "replay"
        return self.retry or (MODEL_RETRY if may_repeat else ONCE)

    @classmethod
    def of(
        cls, metadata: Mapping[str, Any] | None, default: "ToolOptions | None" = None
    ) -> "ToolOptions":
        """Return the options in the metadata of a tool, on top of the default ones.

        Raises:
            DefinitionError: There is no such option.
        """
        base = default or cls()
        given = (metadata or {}).get("perdure", {})
        if given is False:
            return msgspec.structs.replace(base, inline=True)
        if not isinstance(given, Mapping):
            raise DefinitionError(f"'perdure' in a tool's metadata is options or False: {given!r}")
        wanted = dict(cast("Mapping[str, Any]", given))
        known = set(cls.__struct_fields__) - {"inline", "raises"}
        for name, values in _VALUES.items():
            if wanted.get(name, values[0]) not in values:
                choice = " or ".join(map(repr, values))
                raise DefinitionError(f"{name} of a tool is {choice}, not {wanted[name]!r}")
        if unknown := set(wanted) - known:
            raise DefinitionError(
                f"a tool has no option {', '.join(sorted(unknown))}; it has "
                f"{', '.join(sorted(known))}"
            )
        if isinstance(attempts := wanted.get("retry"), int):
            wanted["retry"] = Retry(attempts=attempts)
        return msgspec.structs.replace(base, **wanted)


def options_by_hints(hints: Any) -> ToolOptions:
    """Return the options of a tool of an MCP server by what it says of the tool, if anything.

    Args:
        hints: Its annotations, in the spelling of either generation of the SDK.
    """
    said: dict[str, Any] = {} if hints is None else hints.model_dump(by_alias=True)
    if said.get("readOnlyHint"):
        return ToolOptions()
    return ToolOptions(effect=True, in_doubt="replay" if said.get("idempotentHint") else "ask")


class ToolRun(Struct, frozen=True):
    """One tool call, as its function gets it.

    Attributes:
        arguments: The arguments; a person may have edited them.
        key: The same at every attempt and after every crash; empty if it is inline.
        step: The context of the step; None if it is inline.
    """

    arguments: Any
    key: str = ""
    step: StepContext | None = None


ToolBody: TypeAlias = Callable[[ToolRun], Awaitable[Any]]

# Errors of JSON-RPC by which an MCP server says that it has not begun with a call.
MCP_REFUSALS: Final = frozenset({-32700, -32600, -32601, -32602})
MCP_KEY: Final = "perdure/idempotency-key"  # in `_meta` of a call to an MCP server

_key: ContextVar[str] = ContextVar("perdure.tool_key", default="")


def idempotency_key() -> str:
    """Return the idempotency key of the running tool call, to be passed to its receiver.

    It is the same at every attempt and after every crash. Outside of a job it is empty.
    """
    return _key.get()


async def tool_call(
    ctx: JobContext,
    name: str,
    body: ToolBody,
    *,
    key: str | None,
    arguments: Any,
    options: ToolOptions | None = None,
) -> Any:
    """Call a tool in a step; return its result, plain JSON values, or the recorded one.

    Args:
        ctx: The job.
        name: The tool.
        body: Calls it; returns plain JSON values.
        key: Identifies the call in its job: see `key_of`.
        arguments: Plain JSON values, which rules, gates and people see.
        options: How it is called.

    Raises:
        ApprovalRejected: A person was asked because of its risk, and rejected it.
        StepFailed: It failed for good, and it is certain that it had no effect.
    """
    how = options or ToolOptions()
    if how.inline:
        with ctx.scope(f"tool {_name('', name)} {key_of(ctx, 'inline', name, key)}"):
            return await body(ToolRun(arguments))

    async def attempt(step: StepContext, input: Any) -> Any:
        async def run(effect_key: str) -> Any:
            token = _key.set(effect_key)
            try:
                return await body(ToolRun(input, effect_key, step))
            finally:
                _key.reset(token)

        try:
            if not how.effect:
                return await run(step.idempotency_key)
            target = _name("", name)
            return await step.effect("tool call", run, target=target, in_doubt=how.in_doubt)
        except Exception as error:
            raise as_outage(error) from error

    return await ctx.call(
        _name(TOOL, name),
        attempt,
        key=key,
        input=arguments,
        # What the model has sent is in the journal: only validation can have changed the arguments.
        compare=key is None,
        retry=how.retries,
        timeout=how.timeout,
        risk=how.risk,
        irreversible=how.irreversible,
        raises=(*how.raises, ApprovalRejected),
    )


# People


class AskAnswer(Struct, frozen=True, kw_only=True):
    """What a person has answered.

    Attributes:
        approved: Whether the tool may be called.
        arguments: What to call it with; a person may have edited them.
        reason: Why not.
        person: Who said no.
    """

    approved: bool
    arguments: Any
    reason: str = ""
    person: str = ""


async def ask(
    ctx: JobContext,
    tool: str,
    arguments: Any,
    *,
    key: str | None,
    risk: str = "high",
    description: str = "",
) -> AskAnswer:
    """Ask a person whether a tool may be called; the job waits without a worker.

    The answer holds for exactly these arguments. A rejection is returned, to be passed to the
    model. If nobody answers in time, the job is parked.
    """
    question = AskAbout(tool=tool, arguments=arguments, key=key, risk=risk, description=description)
    return (await ask_all(ctx, [question]))[0]


class AskAbout(Struct, frozen=True, kw_only=True):
    """A question about one tool call; see `ask`."""

    tool: str
    arguments: Any
    key: str | None = None
    risk: str = "high"
    description: str = ""


async def ask_all(ctx: JobContext, questions: Iterable[AskAbout]) -> list[AskAnswer]:
    """Ask about several calls at the same time; return the answers in this order."""

    async def approved(_: StepContext, input: Any) -> Any:
        return input

    wanted = list(questions)
    steps = [
        ctx.call(
            _name(ASK, each.tool),
            approved,
            key=each.key,
            input=each.arguments,
            compare=each.key is None,
            risk=each.risk,
            approval="required",
            description=each.description or f"Call the tool {each.tool}",
            raises=ApprovalRejected,
        )
        for each in wanted
    ]
    found = await ctx.gather(*steps, return_exceptions=True)
    return [_answer(each, result) for each, result in zip(wanted, found, strict=True)]


def _answer(question: AskAbout, found: Any) -> AskAnswer:
    if isinstance(found, ApprovalRejected):
        no, asked = found, question.arguments
        return AskAnswer(approved=False, arguments=asked, reason=no.reason, person=no.person)
    if isinstance(found, BaseException):
        raise found
    return AskAnswer(approved=True, arguments=found)
