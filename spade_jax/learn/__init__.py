"""From returns to new weights: scores and advantages on the host, losses and steps on the device.

Never imports `spade_jax.envs`: what is learned from is plain data.
"""
