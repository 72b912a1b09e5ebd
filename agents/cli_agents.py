"""`leirgym agents`: what can search, and what can guide a search."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from agents.base import AGENTS, PROPOSERS, factory
from envs.common.console import Answer, columns, verb


@verb("agents")
def agents() -> Answer:
    """List the agents and the proposers, a line each."""
    searches, guides = _lines("agent", AGENTS), _lines("proposer", PROPOSERS)
    rows = [("agent", "meaning"), *searches.items(), ("", ""), ("proposer", "meaning"), *guides.items()]
    return Answer(columns(rows), {"agents": searches, "proposers": guides})


def _lines(what: str, table: Mapping[str, str]) -> dict[str, str]:
    """The first line of each one's documentation, by name."""
    return {name: (inspect.getdoc(factory(what, table, name)) or "").partition("\n")[0] for name in table}
