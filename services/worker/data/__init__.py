"""From dataset lines to checked rows with hidden states: what the data stages (prepare to vocab) are made of."""
