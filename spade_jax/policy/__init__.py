"""The policy: model, sampler, tokenizer and Hugging Face files. One set of weights, two roles."""
