"""The registry of drafts: what people do with published drafts beside downloading them."""
