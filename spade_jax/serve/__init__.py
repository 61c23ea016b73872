"""An OpenAI-compatible server over the sampler: wire forms, the engine's thread, HTTP."""
