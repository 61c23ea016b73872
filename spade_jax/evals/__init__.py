"""Measuring a policy on what it was not trained on."""
