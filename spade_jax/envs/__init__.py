"""Environments: the contract, parsers, the sandbox and validation. Never imports jax."""
