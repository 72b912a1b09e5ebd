"""Reinforcement learning with masks: `training` makes policies, `policy` plays them on any problem with a face."""
