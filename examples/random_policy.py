"""A random legal policy on LEIR-v0, rewarded by the cost model: needs no compiler.

python examples/random_policy.py softmax
"""

import sys

import gymnasium

import leirgym  # noqa: F401  (registers the environments)


def main(workload: str) -> None:
    """Play one episode and print what happens."""
    env = gymnasium.make("LEIR-v0", workload=workload, reward="model", max_steps=8)
    observation, info = env.reset(seed=0)
    env.action_space.seed(0)
    print(observation)
    done = False
    while not done:
        action = env.action_space.sample(mask=info["action_mask"])
        chosen = info["actions"][action]
        observation, reward, terminated, truncated, info = env.step(action)
        print(f"{chosen:40} reward {reward:+.3f}  predicted speedup {info['speedup_over_root']:.2f}x the root")
        done = terminated or truncated
    print(observation)
    env.close()


if __name__ == "__main__":
    main(*sys.argv[1:] or ["softmax"])
