"""`…/saved`: filters and favourites that are defined for all; the person's own are in the page."""

from __future__ import annotations

from typing import Final

from moldau.console.calls import Call, Reply
from moldau.console.own.lists import OWN
from moldau.console.routes import Route
from moldau.console.schemas import STRING, array, named, nullable, record

_TEXT: Final = nullable(STRING)
SAVED: Final = named(
    "Saved",
    record(
        {
            "filters": array(
                record({"name": STRING}, dict.fromkeys(("topic", "where", "grep", "key"), _TEXT))
            ),
            "favourites": array(STRING),
        }
    ),
)


async def show_saved(_call: Call) -> Reply:
    """None yet: no configuration defines any."""
    return Reply({"filters": [], "favourites": []})


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{OWN}/saved",
        handler=show_saved,
        name="getSaved",
        summary="Filters and favourites that are defined for all",
        answer=SAVED,
    ),
)
