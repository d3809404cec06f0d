"""The verifier: vLLM started with the right flags, the connector that keeps hidden states, and a plugin for CPUs."""
