"""SPADE: self-play in adaptive synthetic executable environments, in JAX."""

__version__ = "0.1.0"
