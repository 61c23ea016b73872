"""The set-up of a run: what the learner is given, and what is said at the start."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from ml_collections import config_dict

from spade_jax import run as run_setup
from spade_jax.learn import step
from spade_jax.policy import hub, model, sharding
from spade_jax.policy.conversation import Policy
from spade_jax.policy.model import Params
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Message, Role, UsageError
from tests import small_run
from tests.policy.small import SMALL, random_params

TX = step.optimizer(1e-4, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0)


def on_a_mesh() -> Params:
    declared = model.declare(SMALL)
    places = sharding.parameters(declared, sharding.make_mesh(devices=jax.devices()[:1]), "train")
    return jax.device_put(random_params(SMALL), places)


def configured(**fields: object) -> config_dict.ConfigDict:
    return small_run.configured("tiny", {k.replace("__", "."): v for k, v in fields.items()})


def test_the_reference_lies_where_what_is_trained_does() -> None:
    """It is a copy, because an update takes the parameters' memory."""
    params = on_a_mesh()
    learner, trained = run_setup.new_learner(configured(learn__kl=0.1), SMALL, params, TX)
    assert trained is params
    for own, kept in zip(*map(jax.tree.leaves, (params, learner.reference)), strict=True):
        assert kept.sharding.is_equivalent_to(own.sharding, own.ndim)
        assert isinstance(kept.sharding, jax.sharding.NamedSharding)
        assert kept.unsafe_buffer_pointer() != own.unsafe_buffer_pointer()
    assert run_setup.new_learner(configured(), SMALL, params, TX)[0].reference is None


def test_the_reference_of_adapters_is_what_they_adapt() -> None:
    params = on_a_mesh()
    c = configured(learn__kl=0.1, model__lora__rank=2)
    learner, trained = run_setup.new_learner(c, SMALL, params, TX)
    assert learner.reference is learner.frozen is params
    assert set(trained) == {"layers"}


def test_a_seed_may_be_any_number() -> None:
    c = configured(seed=10**30, model__lora__rank=2)
    assert set(run_setup.new_learner(c, SMALL, on_a_mesh(), TX)[1]) == {"layers"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {},
            "sequence_mean of -min(old/behaviour, 2) min(r A, clip(r, 0.8, 1.28) A), 1 passes in "
            "1 minibatches, AdamW at 0.00015",
        ),
        (
            {
                "learn__aggregation": "token_mean",
                "learn__importance_cap": 0.0,
                "learn__kl": 0.005,
                "learn__entropy": 0.01,
                "learn__passes": 2,
            },
            "token_mean of -min(r A, clip(r, 0.8, 1.28) A) + 0.005 k3(reference) - 0.01 entropy, "
            "2 passes in 1 minibatches, AdamW at 0.00015",
        ),
    ],
)
def test_the_loss_is_said_at_the_start(
    fields: dict[str, object], expected: str, capsys: pytest.CaptureFixture
) -> None:
    sandbox = SimpleNamespace(confinement=SimpleNamespace(tier="full", missing={}))
    run = SimpleNamespace(config=configured(**fields), model=SMALL, sandbox=sandbox)
    with jax.set_mesh(sharding.make_mesh(devices=jax.devices()[:1])):
        run_setup.describe(run)
    [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("loss: ")]
    assert line == f"loss: {expected}"


# -- thinking ---------------------------------------------------------------------------------

BUNDLED = hub.folder("")
SWITCHED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def test_each_role_thinks_or_not(tmp_path: Path) -> None:
    folder = shutil.copytree(BUNDLED, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(SWITCHED)
    c = configured(design__thinking="on", play__thinking="off")
    chats = run_setup.new_tokenizers(c, folder)
    said = [Message(role="user", content="Go.")]
    opening = {role: chat.decode(chat.prompt(said)) for role, chat in chats.items()}
    assert opening[Role.AGENT] == opening[Role.DESIGNER] + "<think>\n\n</think>\n\n"
    alike = run_setup.new_tokenizers(configured(), folder)
    assert alike[Role.AGENT] is alike[Role.DESIGNER]


def test_a_template_without_the_switch() -> None:
    with pytest.raises(UsageError, match="play.thinking is 'off', but .* has no switch enable_thi"):
        run_setup.new_tokenizers(configured(play__thinking="off"), BUNDLED)


def test_the_designer_speaks_with_the_same_weights() -> None:
    chats = [ChatTokenizer(BUNDLED) for _ in Role]
    run = SimpleNamespace(tokenizers=dict(zip(Role, chats, strict=True)))
    policy = Policy(SimpleNamespace(), run.tokenizers[Role.AGENT], version=5)
    designer = run_setup.Run.designer(run, policy)
    assert designer.tokenizer is run.tokenizers[Role.DESIGNER]
    assert (designer.sampler, designer.version) == (policy.sampler, 5)
    designer.tally.sampled += 3
    assert policy.tokens_sampled == 3, "counted together"
