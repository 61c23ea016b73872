"""Experiments as ml_collections configs; `default.py` documents every field."""
