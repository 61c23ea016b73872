"""What the TPU's compiler is told beyond its defaults; no other platform reads it."""

from __future__ import annotations

import os

VARIABLE = "LIBTPU_INIT_ARGS"
# As of libtpu 0.0.52, which the extra `tpu` asks for.
OPTIONS = (
    # Collectives that carry weights run on the sparse cores of v5p and v6e, beside the products.
    # Those of tpu7x do so unasked; v4 and v5e take no notice.
    *(
        f"xla_tpu_enable_sparse_core_collective_offload_{kind}"
        for kind in ("all_gather", "2d_all_gather", "reduce_scatter")
    ),
    # On v5e, v6e and tpu7x a ragged product would else take as long as one with every expert.
    "xla_tpu_enable_ragged_dot_kernel",
)


def set_options() -> None:
    """Set them for this process, before JAX uses a device; the user's own come later and win.

    Not with SPADE_LIBTPU=0: a libtpu that does not know one of them ends the process.
    """
    if os.environ.get("SPADE_LIBTPU") == "0":
        return
    given = os.environ.get(VARIABLE, "")
    own = [f"--{name}=true" for name in OPTIONS if f"{name}=" not in given]
    os.environ[VARIABLE] = " ".join([*own, *given.split()])
