"""The OpenAPI document: what routes do not say themselves."""
