"""The environments; importing this package registers their ids with Gymnasium."""

from gymnasium.envs.registration import register

register(id="LEIR-v0", entry_point="envs.leir_env.env:LeirEnv")

_KERNEL_TUNER = {"KernelTuner-v0": "values", "KernelTuner-Flat-v0": "number", "KernelTuner-Local-v0": "move"}

for _id, _actions in _KERNEL_TUNER.items():
    register(
        id=_id,
        entry_point="envs.autotune_env.env:KernelTunerEnv",
        vector_entry_point="envs.autotune_env.vector:KernelTunerVectorEnv",
        kwargs={"actions": _actions},
    )
