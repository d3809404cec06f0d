"""Draft training with speculators' own trainer: what adapts it, what guards it, and what it leaves behind."""
