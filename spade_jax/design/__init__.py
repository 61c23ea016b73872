"""Designing: grounding corpus, memory, prompts, reading replies, bundled families."""
