"""The environments; importing this package registers their ids with Gymnasium."""

from gymnasium.envs.registration import register

register(id="LEIR-v0", entry_point="envs.leir_env.env:LeirEnv")
