"""Trackers: what TensorBoard and Weights & Biases are told, and that steps never go back."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ml_collections import config_dict
from tensorboardX.proto import event_pb2

from spade_jax import trackers, train
from spade_jax.trackers import Shown

SHOWN = Shown({"agent/returns": [0.0, 1.0, 1.0]}, {"designer/last": "**SumEnv**\n\n    class"})


def events(folder: Path) -> Iterator[event_pb2.Event]:
    """Events of a folder's files; a record is length, check, bytes, check."""
    for path in sorted(folder.glob("events*")):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            yield event_pb2.Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]


def test_tensorboard_gets_scalars_histograms_and_texts(tmp_path: Path) -> None:
    board = trackers.TensorBoard(tmp_path, 0)
    board.write(2, {"learn/loss": 0.5}, SHOWN)
    board.close()
    values = {v.tag: v for e in events(tmp_path / "tensorboard") for v in e.summary.value}
    assert values["learn/loss"].simple_value == 0.5
    histogram = values["agent/returns"].histo
    assert (histogram.num, histogram.min, histogram.max, histogram.sum) == (3, 0.0, 1.0, 2.0)
    [text] = [value for tag, value in values.items() if tag.startswith("designer/last")]
    assert text.tensor.string_val == [b"**SumEnv**\n\n    class"]


def test_tensorboard_forgets_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    trackers.TensorBoard(tmp_path, 7).close()
    starts = [e.step for e in events(tmp_path / "tensorboard") if e.HasField("session_log")]
    assert starts == [7]


class Wandb:
    """In place of the package: it notes what it is asked for, and refuses a step back."""

    def __init__(self) -> None:
        self.inits: list[dict[str, object]] = []
        self.logged: list[tuple[int, dict[str, object]]] = []
        self.finished = 0

    Settings = staticmethod(dict)
    Histogram = staticmethod(tuple)

    @staticmethod
    def Html(text: str, inject: bool) -> str:
        return text

    def init(self, **options: object) -> "Wandb":
        self.inits.append(options)
        return self

    def log(self, values: dict[str, object], step: int) -> None:
        assert not self.logged or step > self.logged[-1][0]
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_steps_of_wandb_never_go_back(wandb: Wandb, tmp_path: Path) -> None:
    for start, end in ((0, 4), (2, 3), (2, 6)):  # killed, and resumed at its checkpoint, twice
        tracker = trackers.WandB(tmp_path, "games", "offline", {"seed": 1})
        for step in range(start, end):
            tracker.write(step, {"learn/loss": float(step + start)}, Shown())
        tracker.close()
    assert [step for step, _ in wandb.logged] == [0, 1, 2, 3, 4, 5]
    assert wandb.logged[-1] == (5, {"learn/loss": 7.0})
    assert len({options["id"] for options in wandb.inits}) == 1 and wandb.finished == 3
    first = wandb.inits[0]
    assert (first["project"], first["mode"], first["resume"]) == ("games", "offline", "allow")
    assert json.loads((tmp_path / trackers.WANDB_FILE).read_text())["step"] == 5


def test_wandb_gets_histograms_and_texts_as_text(wandb: Wandb, tmp_path: Path) -> None:
    tracker = trackers.WandB(tmp_path, "games", "online", {})
    tracker.write(0, {"learn/loss": 1.0}, Shown({"a": [1.0]}, {"b": "<script>"}))
    [(_, values)] = wandb.logged
    assert values == {"learn/loss": 1.0, "a": (1.0,), "b": "<pre>&lt;script&gt;</pre>"}


def test_wandb_itself_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    for start in (0, 1):
        tracker = trackers.WandB(tmp_path, "games", "offline", {"seed": 1})
        for step in range(start, start + 2):
            tracker.write(step, {"learn/loss": 1.0}, SHOWN)
        tracker.close()
    assert json.loads((tmp_path / trackers.WANDB_FILE).read_text())["step"] == 2
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and all(list(folder.glob("*.wandb")) for folder in folders)


def test_a_config_chooses_its_trackers(
    wandb: Wandb, tmp_path: Path, default: config_dict.ConfigDict
) -> None:
    chosen = default.copy_and_resolve_references()
    chosen.update_from_flattened_dict({"log.wandb": "offline", "log.project": "games"})
    opened = train.open_trackers(chosen, tmp_path, 0)
    for tracker in opened:
        tracker.close()
    assert [type(tracker) for tracker in opened] == [trackers.TensorBoard, trackers.WandB]
    assert wandb.inits[0]["project"] == "games" and wandb.inits[0]["config"]["iterations"] == 400
    chosen.update_from_flattened_dict({"log.wandb": "off", "log.tensorboard": False})
    assert train.open_trackers(chosen, tmp_path, 0) == []
