"""A small tokenizer, trained once."""

from pathlib import Path

import pytest

from spade_jax.policy.tokenizer import ChatTokenizer, save_tokenizer, train_tokenizer

TEXTS = (
    "What is the sum of the numbers? The answer is the sum.\n\n",
    "def step(self, action):\n    return self.answer\n\n\n\n",
)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(TEXTS, entries=300), folder, context=512)
    return folder


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_folder)
