"""PPO with masks (sb3-contrib) on the environments: illegal actions have no probability, and need no learning.

Huang and Ontañón, "A closer look at invalid action masking in policy gradient algorithms", FLAIRS 2022; Schulman et
al., "Proximal policy optimization algorithms", 2017.

    course = Course("LEIR-v0", {"reward": "model", "observation": "dict"}, "workload", ("softmax", "gelu"))
    policy = train(course, steps=8192)
    policy.save(Path("policy.npz"))
"""

# mypy: disable-error-code="misc"
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, flatten, flatten_space
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

import leirgym
from agents.rl.network import Floats, Layer, Network, Policy, PolicyError, squash
from envs.common.env import OptimizationEnv

assert leirgym.VERBS  # the import registered the environments

Listener = Callable[[int, float, Policy], None]
"""Told, now and then, how many steps were taken, the mean return of the latest episodes, and the policy so far."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a policy is trained on: an environment, and the tasks of its episodes."""

    environment: str = "LEIR-v0"
    """Its id."""
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"reward": "model", "observation": "dict"})
    """It is made with these."""
    option: str = ""
    """The reset option that chooses a task; empty where the environment has one, or chooses by itself."""
    tasks: tuple[Any, ...] = ()
    """Values of the option, of which each episode takes one at random."""

    def make(self) -> gymnasium.Env[Any, Any]:
        """The environment with numbers for observations."""
        env: gymnasium.Env[Any, Any] = Numbers(
            gymnasium.make(self.environment, disable_env_checker=True, **self.arguments)
        )
        return Assorted(env, self.option, self.tasks) if self.tasks else env


@dataclass(frozen=True, slots=True)
class Settings:
    """How PPO learns. The names are the usual ones; `rollout` are the steps between two updates."""

    learning_rate: float = 1e-3
    rollout: int = 512
    minibatch: int = 128
    epochs: int = 6
    discount: float = 0.99
    entropy: float = 0.01
    hidden: tuple[int, ...] = (64, 64)


class Numbers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the numbers of a dictionary of observations, as one vector: no texts, and no mask, which goes apart.

    Nothing is kept of `info`: trainers copy it deeply at every step, and a menu is long.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        given = env.observation_space
        if not isinstance(given, Dict):
            raise PolicyError(f"a policy reads observations of kind dict, not {type(given).__name__}")
        names = sorted(given.spaces)
        self._kept = Dict({name: given[name] for name in names if isinstance(given[name], Box | Discrete)})
        width = flatten_space(self._kept).shape
        self.observation_space = Box(-np.inf, np.inf, width, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, _ = self.env.reset(seed=seed, options=options)
        return self._vector(observation), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return self._vector(observation), reward, terminated, truncated, {}

    def _vector(self, observation: Mapping[str, Any]) -> Floats:
        kept = flatten(self._kept, {name: observation[name] for name in self._kept.spaces})
        return squash(np.asarray(kept))


class Assorted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each episode is about one of several tasks, at random, unless `reset` names one."""

    def __init__(self, env: gymnasium.Env[Any, Any], option: str, tasks: Sequence[Any]) -> None:
        super().__init__(env)
        self._option, self._tasks = option, tuple(tasks)
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed seeds the choice of tasks as well."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if options is None:
            options = {self._option: self._tasks[self._rng.integers(len(self._tasks))]}
        return self.env.reset(seed=seed, options=options)


def train(
    course: Course,
    steps: int,
    seed: int = 0,
    settings: Settings | None = None,
    listen: Listener = lambda steps, mean, policy: None,
) -> Policy:
    """Train for so many steps (rounded up to whole rollouts), on one thread; a seed repeats a training."""
    torch.set_num_threads(1)
    chosen = settings or Settings()
    env = course.make()
    model = MaskablePPO(
        MenuPolicy,
        env,
        learning_rate=chosen.learning_rate,
        n_steps=chosen.rollout,
        batch_size=chosen.minibatch,
        n_epochs=chosen.epochs,
        gamma=chosen.discount,
        ent_coef=chosen.entropy,
        policy_kwargs={"net_arch": list(chosen.hidden), "activation_fn": nn.Tanh, "blocks": _blocks(env)},
        seed=seed,
        device="cpu",
    )
    model.learn(steps, callback=_Tell(course, listen))
    policy = policy_of(model, course)
    env.close()
    return policy


class Shared(nn.Module):
    """Logits of a menu: that of an action is its own plus one that all actions of its strategy share.

    What is learnt about one site of a strategy then holds, at first, for its other sites too. The sum is linear in
    its input, so that `merged` makes one layer of it. All actions begin equally likely.
    """

    def __init__(self, width: int, choices: int, blocks: Mapping[str, int]) -> None:
        super().__init__()
        self.own = nn.Linear(width, choices)
        self.strategies = nn.Linear(width, 1 + len(blocks))
        for layer in (self.own, self.strategies):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        # Index 0 stops; without blocks, all share what makes no difference.
        owners = np.zeros(choices, np.int64)
        owners[1 : 1 + sum(blocks.values())] = np.repeat(np.arange(1, 1 + len(blocks)), list(blocks.values()))
        self.register_buffer("owners", torch.from_numpy(owners))

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        return self.own(signal) + self.strategies(signal)[..., self.owners]

    def merged(self) -> Layer:
        """Weights and biases of the one layer that computes the same."""
        weights = self.own.weight + self.strategies.weight[self.owners]
        biases = self.own.bias + self.strategies.bias[self.owners]
        return weights.detach().numpy().T.copy(), biases.detach().numpy().copy()


class MenuPolicy(MaskableActorCriticPolicy):
    """Two networks of plain layers, one for the logits, which end in `Shared`, one for the value."""

    def __init__(self, *args: Any, blocks: Mapping[str, int], **kwargs: Any) -> None:
        self._blocks = dict(blocks)
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        super()._build(lr_schedule)
        choices = sum(_sizes(self.action_space))
        self.action_net = Shared(self.mlp_extractor.latent_dim_pi, choices, self._blocks)
        # The optimiser that exists was given the layer that has just been replaced.
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class _Tell(BaseCallback):
    """Tells the listener after every rollout."""

    def __init__(self, course: Course, listen: Listener) -> None:
        super().__init__()
        self._course, self._listen = course, listen

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        mean = float(np.mean(returns)) if returns else float("nan")
        self._listen(self.num_timesteps, mean, policy_of(self.model, self._course))


def policy_of(model: Any, course: Course) -> Policy:
    """Copy what a MaskablePPO model has learnt."""
    hidden = tuple(
        (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
        for layer in model.policy.mlp_extractor.policy_net
        if isinstance(layer, nn.Linear)
    )
    network = Network((*hidden, model.policy.action_net.merged()), _sizes(model.action_space))
    env = model.get_env().envs[0].unwrapped
    # Found in the environment, so that the file says it even where the course left it at its default.
    known = {"max_steps": env.max_steps, "target": env.target} if isinstance(env, OptimizationEnv) else {}
    return Policy(network, course.environment, {**course.arguments, **known}, _blocks(env))


def _blocks(env: gymnasium.Env[Any, Any]) -> dict[str, int]:
    inner = env.unwrapped
    return dict(inner.menu.blocks) if isinstance(inner, OptimizationEnv) else {}


def _sizes(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    if isinstance(space, MultiDiscrete):
        return tuple(int(size) for size in space.nvec)
    assert isinstance(space, Discrete)
    return (int(space.n),)


def returns(
    policy: Policy | None,
    course: Course,
    task: Any = None,
    episodes: int = 1,
    rng: np.random.Generator | None = None,
) -> list[float]:
    """The returns of episodes (seeds 0, 1, ...), on one task or on those of the course.

    The policy takes its likeliest choices, or draws with `rng`; None stands for a policy that draws legal actions,
    all equally likely, and needs `rng`.
    """
    env = course.make()
    sizes = policy.network.sizes if policy is not None else _sizes(env.action_space)
    found = []
    for seed in range(episodes):
        seen, _ = env.reset(seed=seed, options=None if task is None else {course.option: task})
        total, over = 0.0, False
        while not over:
            mask = env.get_wrapper_attr("action_masks")()
            chosen = policy.network.choose(seen, mask, rng) if policy is not None else _any(mask, sizes, rng)
            action = chosen[0] if isinstance(env.action_space, Discrete) else np.array(chosen)
            seen, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        found.append(total)
    env.close()
    return found


def _any(mask: npt.NDArray[np.bool_], sizes: Sequence[int], rng: np.random.Generator | None) -> tuple[int, ...]:
    if rng is None:
        raise PolicyError("a policy that draws at random needs a generator: rng=")
    parts = np.split(mask, np.cumsum(sizes)[:-1])
    return tuple(int(rng.choice(np.flatnonzero(part))) for part in parts)
