"""The option of commands that says which trained policy the agent `ppo` follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agents.rl.faces import face_for
from agents.rl.network import PolicyError, load
from envs.common.console import BadInput
from envs.common.problem import Problem

policy_option = click.option(
    "--policy",
    type=click.Path(dir_okay=False, resolve_path=True, path_type=Path),
    help="Trained policy of the agent ppo, a file.",
)


def check_policy(policy: Path | None, agents: Sequence[str], problems: Sequence[Problem[Any]]) -> None:
    """Refuse a policy that no agent asks for, the want of one, and one that can't act on the problems."""
    if ("ppo" in agents) != (policy is not None):
        raise BadInput("the agent ppo and --policy FILE go together")
    if policy is None:
        return
    try:
        loaded = load(policy)
        for problem in problems:
            face_for(loaded, problem)
    except PolicyError as error:
        raise BadInput(f"--policy: {error}") from error
