"""The calls of the REST API, one file a resource; `services.cli.client` puts them together."""
