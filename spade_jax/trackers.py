"""Trackers that follow a run beside `metrics.jsonl`: TensorBoard, and Weights & Biases.

The JSONL file is the truth; these are ways of looking at it. Each is imported only where it is
used: tensorboardX alone loads PyTorch where that is installed.
"""

from __future__ import annotations

import dataclasses
import html
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from ml_collections import config_dict

WANDB_FILE = "wandb.json"  # in a workdir: the run's name there, and its last step


@dataclasses.dataclass(frozen=True)
class Shown:
    """What an iteration shows beside its numbers: distributions and Markdown texts, by name."""

    histograms: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Tracker(Protocol):
    """Follows a run by its iterations."""

    def write(self, step: int, scalars: Mapping[str, float], shown: Shown) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Events in `WORKDIR/tensorboard`; a run resumed at `step` tells it to forget later ones."""

    def __init__(self, workdir: Path, step: int) -> None:
        import tensorboardX

        self._events = tensorboardX.SummaryWriter(
            str(workdir / "tensorboard"), purge_step=step if step > 0 else None
        )

    def write(self, step: int, scalars: Mapping[str, float], shown: Shown) -> None:
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)
        for name, values in shown.histograms.items():
            self._events.add_histogram(name, values, step)
        for name, text in shown.texts.items():
            self._events.add_text(name, text, step)
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class WandB:
    """A run of a Weights & Biases project, which the same workdir goes on with.

    Its steps may not go back. A resumed run comes again through iterations that it has written:
    those are left out there, and `metrics.jsonl` has them.
    """

    def __init__(
        self, workdir: Path, project: str, mode: str, config: Mapping[str, object]
    ) -> None:
        import wandb

        self._wandb = wandb
        self._path = workdir / WANDB_FILE
        known = msgspec.json.decode(self._path.read_bytes()) if self._path.exists() else {}
        self._id, self._last = known.get("id", uuid.uuid4().hex), known.get("step", -1)
        self._run = wandb.init(
            project=project,
            id=self._id,
            name=workdir.name,
            dir=str(workdir),
            config=dict(config),
            mode=mode,
            resume="allow",
            settings=wandb.Settings(silent=True),
        )
        self._note()

    def write(self, step: int, scalars: Mapping[str, float], shown: Shown) -> None:
        if step <= self._last:
            return
        histograms = {k: self._wandb.Histogram(list(v)) for k, v in shown.histograms.items()}
        texts = {
            name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
            for name, text in shown.texts.items()
        }
        self._run.log({**scalars, **histograms, **texts}, step=step)
        self._last = step
        self._note()

    def close(self) -> None:
        self._run.finish()

    def _note(self) -> None:
        """Note the last step, in one rename."""
        draft = self._path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode({"id": self._id, "step": self._last}))
        draft.replace(self._path)


def open_trackers(c: config_dict.ConfigDict, workdir: Path, step: int) -> list[Tracker]:
    """What follows the run from iteration `step` on."""
    opened: list[Tracker] = [TensorBoard(workdir, step)] if c.log.tensorboard else []
    if c.log.wandb != "off":
        opened.append(WandB(workdir, c.log.project, c.log.wandb, c.to_dict()))
    return opened
