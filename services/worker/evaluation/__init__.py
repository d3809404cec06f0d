"""How good a draft is: offline from validation states, or in vLLM."""
