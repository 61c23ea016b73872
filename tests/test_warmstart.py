"""The warm start on small models: from conversations, from the bundled lessons, and resumed."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax import warmstart
from spade_jax.config import ConfigError
from spade_jax.design.families import FAMILIES
from spade_jax.learn import step
from spade_jax.policy import hub, model
from spade_jax.policy.conversation import Budget, Policy, reply_each
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Message, TokenRecord, UsageError
from tests import small_run

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
BUNDLED_LIMIT = 8 * 2**20
SHORT = {"train.row_tokens": (64,), "train.rows": (4,)}
MESSAGES = [{"role": "user", "content": "Say 1."}, {"role": "assistant", "content": "1"}]


def conversations() -> list[list[Message]]:
    pairs = [(f"Bees: what is {n} + 1?", f"\\boxed{{{n + 1}}}") for n in range(12)]
    return [
        [Message(role="user", content=a), Message(role="assistant", content=b)] for a, b in pairs
    ]


def write(path: Path, lines: list[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_conversations_of_a_file_are_learned(model_folder: Path) -> None:
    """The session's model saw nothing but boxed digits."""
    assert {path.name for path in model_folder.iterdir()} == FILES
    config, params = hub.load(model_folder)
    assert (config.layers, config.width, config.max_positions) == (2, 32, 640)
    chat = ChatTokenizer(model_folder)
    sampler = Sampler(
        params, config, slots=1, context=128, stop_ids=chat.stop_ids, dtype=jnp.float32
    )
    dialogues = Policy(sampler, chat).converse()
    asked = {dialogues.open(): [Message(role="user", content="Bees: what is 3 + 4?")]}
    budget = Budget(16, 128, Sampling(temperature=0.01))
    [reply] = reply_each(dialogues, asked, dict.fromkeys(asked, (0, 1)), budget).values()
    assert reply.text.startswith("\\boxed")


def test_a_folder_to_start_from_gives_its_tokenizer_and_weights(
    model_folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "two.jsonl", [{"messages": MESSAGES}] * 2)
    fields = {"data.path": str(path), "model.path": str(model_folder), "train.steps": 1}
    fields |= {"train.warmup": 0, "train.lr": 1e-6, "train.adam_lr": 1e-6} | SHORT
    made = small_run.warm_start(tmp_path / "run", fields)
    assert (made / "tokenizer.json").read_bytes() == (model_folder / "tokenizer.json").read_bytes()
    (_, before), (_, after) = hub.load(model_folder), hub.load(made)
    # A step moves a weight by a few times the rate at most.
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), before, after)
    assert 0 < max(jax.tree.leaves(moved)) < 5e-6


def test_bundled_lessons_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = small_run.warm_start(tmp_path, {"data.programs": 10, "train.steps": 4})
    lessons = [json.loads(line) for line in (tmp_path / "lessons.jsonl").read_text().splitlines()]
    assert [lesson["role"] for lesson in lessons] == ["designer"] * 10 + ["agent"] * 10 * 2
    assert {lesson["family"] for lesson in lessons} == set(FAMILIES)
    assert {path.name for path in made.iterdir()} == FILES | {hub.PROGRAMS_FILE}
    assert len((made / hub.PROGRAMS_FILE).read_text().split()) == 10
    table = (tmp_path / "table.txt").read_text()
    assert table.strip() in capsys.readouterr().out
    assert table.startswith("designs: ") and " of 6 accepted" in table
    # Of each family: its name, and plain / hinted success of five levels and all of them.
    rows = {line.split()[0]: line.count(" / ") for line in table.splitlines() if "% / " in line}
    assert rows == dict.fromkeys([*FAMILIES, "all"], 6)


def test_a_resumed_warm_start_equals_an_uninterrupted_one(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"train.steps": 6, "train.warmup": 2, "train.checkpoint_every": 2}
    c = small_run.configured("warmstart", small_run.WARM_START, SHORT, fields)
    chat = ChatTokenizer(model_folder)
    records = [chat.supervised(said) for said in conversations()]

    def train(workdir: Path) -> model.Params:
        return warmstart.train(c, records, *hub.load(model_folder), workdir)

    through = train(tmp_path / "through")
    taken = []
    train_step = step.train_step

    def until(last: int) -> Callable:
        def counted(state: step.LearnerState, *args: object, **kwargs: object) -> tuple:
            if int(state.step) == last:
                raise KeyboardInterrupt
            taken.append(int(state.step))
            return train_step(state, *args, **kwargs)

        return counted

    monkeypatch.setattr(step, "train_step", until(5))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts")
    monkeypatch.setattr(step, "train_step", until(7))
    resumed = train(tmp_path / "parts")
    assert taken == [0, 1, 2, 3, 4, 4, 5]  # from the checkpoint of step 4
    jax.tree.map(np.testing.assert_array_equal, resumed, through)
    again = train(tmp_path / "parts")
    assert len(taken) == 7
    jax.tree.map(np.testing.assert_array_equal, again, through)


def test_rate_rises_and_falls() -> None:
    fields = {"train.steps": 12, "train.warmup": 4, "train.final_share": 0.125}
    rate = warmstart.schedule(small_run.configured("warmstart", fields), 0.5)
    # Half way down the cosine: (0.5 + 0.0625) / 2.
    wanted = {0: 0.0, 2: 0.25, 4: 0.5, 8: 0.28125, 12: 0.0625}
    assert {n: pytest.approx(float(rate(n))) for n in wanted} == wanted


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"messages": MESSAGES}, {"text": "Bees."}], r", line 2, is not .* mend or remove"),
        ([{"messages": [{"role": "user"}]}], r", line 1, is not .* mend or remove"),
        (["messages"], r", line 1, is not .* mend or remove"),
        ([{"messages": MESSAGES[:1]}], "holds no assistant message to learn; give another"),
        ([], "holds no assistant message to learn; give another"),
    ],
)
def test_conversations_of_another_form(tmp_path: Path, lines: list[object], message: str) -> None:
    path = write(tmp_path / "given.jsonl", lines)
    with pytest.raises(UsageError, match=f"{path}.*{message}"):
        warmstart.read_conversations(path)


def test_mistakes_leave_no_trace(tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    with pytest.raises(UsageError, match=r"data.path .*none.jsonl is no file; give a JSONL"):
        small_run.warm_start(workdir, {"data.path": str(tmp_path / "none.jsonl")})
    with pytest.raises(ConfigError, match=r"must name as many lengths as counts; correct one"):
        small_run.warm_start(workdir, {"train.rows": (1, 2)})
    with pytest.raises(ConfigError, match=r"train.warmup is 30 but must be below .* lower it"):
        small_run.warm_start(workdir, {"train.warmup": 30})
    assert not workdir.exists()


def test_shipped_policy_is_sound() -> None:
    """Small, complete, and the same function to transformers as to this package."""
    if not hub.BUNDLED.is_dir():
        pytest.skip(f"{hub.BUNDLED} is not there yet")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    files = {path.name: path.stat().st_size for path in hub.BUNDLED.iterdir()}
    assert FILES | {hub.PROGRAMS_FILE} <= set(files) and sum(files.values()) <= BUNDLED_LIMIT
    marks = (hub.BUNDLED / hub.PROGRAMS_FILE).read_text().split()
    assert len(marks) == len(set(marks)) > 1000

    config, params = hub.load(hub.BUNDLED)
    chat = ChatTokenizer(hub.BUNDLED)
    assert chat.vocab == config.vocab
    reference, report = transformers.AutoModelForCausalLM.from_pretrained(
        hub.BUNDLED, output_loading_info=True
    )
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    said = [{"role": "user", "content": "Honey Bees: add 3 and 4."}]
    asked = chat.prompt([Message(**m) for m in said])
    theirs = transformers.AutoTokenizer.from_pretrained(hub.BUNDLED)
    template = theirs.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    assert theirs.encode(template, add_special_tokens=False) == list(asked)

    with torch.no_grad():
        expected = reference(torch.tensor([asked])).logits[0].log_softmax(-1).numpy()
    record = TokenRecord().wrote(asked, (0.0,) * len(asked))
    got = logps(params, config, record)
    wanted = expected[np.arange(len(asked) - 1), asked[1:]]
    np.testing.assert_allclose(got, wanted, atol=1e-3)


def logps(params: model.Params, config: model.ModelConfig, record: TokenRecord) -> np.ndarray:
    """Log-probabilities of a record's tokens but the first."""
    tokens_BT = jnp.asarray([record.ids])
    positions_BT = jnp.arange(tokens_BT.shape[1])[None]
    hidden_BTD = model.hidden(
        params,
        tokens_BT,
        positions_BT,
        jnp.ones_like(tokens_BT),
        config,
        dtype=jnp.dtype("float32"),
        remat="none",
    )
    target_BT = jnp.roll(tokens_BT, -1, axis=1)
    logp_BT, _ = model.token_logps(
        params, hidden_BTD, target_BT, jnp.ones(tokens_BT.shape, jnp.float32), config
    )
    return np.asarray(logp_BT[0, :-1])
