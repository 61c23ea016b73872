"""What will a run need on a TPU slice? Its programs, compiled by the TPU's compiler on any machine.

    python -m spade_jax.preflight --config=games:qwen3_30b_a3b --topology=v5p:4x4x4 [--json]
        [--config.mesh='(1,16,4,1)'] [--only=train] [--all_buckets] [--length_share=0.25]

Needs libtpu (the extra `tpu`), but no TPU, no network and no weights. Exit code 0: it fits, 1: it
does not, 2: wrong usage.
"""

from __future__ import annotations

from absl import flags

from spade_jax.program import run_program

if __name__ == "__main__":  # before all else, so that --help needs no JAX
    flags.DEFINE_string("topology", "v5p:4x4x4", "The slice: a chip and its shape.")
    flags.DEFINE_bool("json", False, "Print one JSON object instead of tables.")
    flags.DEFINE_bool("all_buckets", False, "Compile every prefill, not only the extremes.")
    flags.DEFINE_list("only", [], "Programs to compile, by how their names begin; none: all.")
    flags.DEFINE_float(
        "length_share",
        0.25,
        "Mean length of conversations, as a share of the most they may have.",
        lower_bound=0.001,
        upper_bound=1.0,
    )
    run_program("spade_jax.preflight.__main__", config="games:qwen3_30b_a3b")

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import config_dict
from rich.console import Console

from spade_jax import config as configs
from spade_jax.policy.model import ModelConfig
from spade_jax.preflight import chips, compiler, estimate, programs, report
from spade_jax.preflight.compiler import Facts, Part
from spade_jax.preflight.report import Report, Slice
from spade_jax.preflight.schedule import Rates
from spade_jax.types import UsageError

FLAGS = flags.FLAGS
WIDTH = 200  # columns of a report that is not read on a terminal
LAST_WORDS = 2000  # characters of what libtpu said before it died


def answers(request: dict[str, Any], c: config_dict.ConfigDict) -> Iterator[dict[str, Any]]:
    """What the compiling process says, line by line.

    Raises UsageError for a mistake it found, and OSError where it died.
    """
    with tempfile.TemporaryDirectory(prefix="spade-jax-preflight-") as folder:
        configs.save(c, folder)
        asked = Path(folder) / "request.json"
        asked.write_text(json.dumps({"config": str(Path(folder) / configs.FILE), **request}))
        written = Path(folder) / "compiled"
        written.mkdir()
        environment = os.environ | compiler.ENVIRONMENT
        environment["XLA_FLAGS"] = f"--xla_dump_to={written} --xla_dump_hlo_as_text"
        with (Path(folder) / "noise").open("w+") as noise:
            process = subprocess.Popen(
                [sys.executable, "-m", "spade_jax.preflight.compiler", str(asked)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=noise,
                text=True,
            )
            try:
                for line in process.stdout:
                    answer = json.loads(line)
                    if "error" in answer:
                        raise UsageError(answer["error"])
                    if set(answer) == {"failed"}:
                        raise OSError(f"the compiler cannot do this: {answer['failed']}")
                    yield answer
                if process.wait():
                    noise.seek(0)
                    words = noise.read()[-LAST_WORDS:]
                    raise OSError(f"the compiler ended with {process.returncode}: {words}")
            finally:
                process.kill()
                process.wait()
                process.stdout.close()


def read_facts(raw: dict[str, Any]) -> Facts:
    """Facts as they were before they became JSON."""
    fields = {name: value for name, value in raw.items() if name != "peak"}
    fields["parts"] = tuple(
        Part(**{**part, "sent": tuple(map(tuple, part["sent"]))}) for part in raw["parts"]
    )
    for name in ("holds", "largest", "untold"):
        fields[name] = tuple(tuple(x) if isinstance(x, list) else x for x in raw[name])
    return Facts(**fields)


def preflight(c: config_dict.ConfigDict, topology: str, share: float, **request: Any) -> Report:
    """Compile the run's programs for the slice, and report on them."""
    device = chips.device(topology)
    chips.check_compiler()
    programs.sizes(c.model.path)  # its mistakes before anything is started
    said = answers({"topology": topology, **request}, c)
    first = next(said)
    first["model"], first["rates"] = ModelConfig(**first["model"]), Rates(**first["rates"])
    facts = []
    with Console(stderr=True).status("starting the compiler") as status:
        for raw in said:
            if "next" in raw:
                status.update(f"compiling {raw['next']}")
            else:
                facts.append(read_facts(raw))
    s = Slice(config=c, topology=topology, device=device, **first)
    return Report(
        slice=s,
        programs=tuple(facts),
        phases=estimate.phases(s.residents, facts, device.granted),
        iteration=estimate.iteration(
            c,
            s.model,
            facts,
            replicas=s.replicas,
            devices=s.devices,
            peak=device.flops,
            share=share,
        ),
        share=share,
    )


def main() -> int:
    made = preflight(
        FLAGS.config,
        FLAGS.topology,
        FLAGS.length_share,
        every_bucket=FLAGS.all_buckets,
        only=FLAGS.only,
    )
    if FLAGS.json:
        print(json.dumps(report.as_json(made)))
    else:
        console = Console()
        report.show(made, console if console.is_terminal else Console(width=WIDTH))
    return 0 if made.fits else 1
