"""Who may use the gateway: API keys, sessions of the page, and the one place where every request is checked."""
