"""What the TPU's compiler is told beyond its defaults; no other platform reads it."""

from __future__ import annotations

import os

VARIABLE = "LIBTPU_INIT_ARGS"
OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload"
# Collectives that carry weights run on the sparse cores, beside the products. By libtpu 0.0.52 this
# matters on v5p and v6e; tpu7x does it by itself, v4 and v5e take no notice.
KINDS = ("all_gather", "2d_all_gather", "reduce_scatter")


def set_options() -> None:
    """Set them for this process, before JAX uses a device; the user's own come later and win."""
    given = os.environ.get(VARIABLE, "")
    own = [f"--{OFFLOAD}_{kind}=true" for kind in KINDS if f"{OFFLOAD}_{kind}=" not in given]
    os.environ[VARIABLE] = " ".join([*own, *given.split()])
