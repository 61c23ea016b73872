"""Playing: episodes of a policy in environments, without and with the hint."""
