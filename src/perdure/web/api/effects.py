"""Effects whose outcome nobody knows, and what people say about them."""

from typing import Any, Final, Literal

from msgspec import Struct

from perdure.jobs.effect import Choice
from perdure.web.access.principal import Permission
from perdure.web.api.jobs import EffectPage
from perdure.web.paging import checked_limit, cursor_of, effect_place
from perdure.web.request import Answer, ApiRequest, Paged, Route
from perdure.web.views import EffectView, effect_view


class EffectQuery(Paged, frozen=True, kw_only=True):
    """Which effects: "in_doubt", those that nobody knows about; "open": also those under way."""

    state: Literal["in_doubt", "open"] = "open"
    limit: int = 100


class ResolutionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of an effect.

    Attributes:
        outcome: "happened", "did_not_happen": it is called again, or "compensate": all is undone.
        result: What the receiver answered, if it happened.
        reason: How this is known.
    """

    outcome: Literal["happened", "did_not_happen", "compensate"]
    result: Any = None
    reason: str


_CHOICES: Final[dict[str, Choice]] = {
    "happened": "happened",
    "did_not_happen": "did not happen",
    "compensate": "compensate",
}


async def list_effects(request: ApiRequest) -> Answer:
    """List the effects whose outcome is not known, the oldest first."""
    query: EffectQuery = request.query
    limit, after = checked_limit(query.limit), effect_place(query.cursor)
    in_doubt = query.state == "in_doubt"
    found = await request.store.open_effects(limit, after, in_doubt=in_doubt)
    items = [effect_view(each) for each in found]
    is_full = len(found) == limit
    behind = cursor_of((items[-1].called_at, items[-1].job, items[-1].no)) if is_full else None
    return Answer(EffectPage(items=items, next=behind, now=await request.store.now()))


async def resolve(request: ApiRequest) -> Answer:
    """Settle an effect that is in doubt."""
    body: ResolutionBody = request.body
    before = await request.store.resolve(
        request.path["key"], _CHOICES[body.outcome], result=body.result, reason=body.reason
    )
    reader = await request.store.read(before.job_id)
    after = [each for each in await reader.effects() if each.no == before.no]
    return Answer(effect_view(after[0] if after else before))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/v1/effects",
        handler=list_effects,
        permission=Permission.EFFECTS_READ,
        summary="List effects whose outcome is not known",
        query=EffectQuery,
        response=EffectPage,
        tag="effects",
    ),
    Route(
        method="POST",
        path="/api/v1/effects/{key}/resolve",
        handler=resolve,
        permission=Permission.EFFECTS_RESOLVE,
        summary="Settle an effect that is in doubt",
        request=ResolutionBody,
        response=EffectView,
        tag="effects",
    ),
)
