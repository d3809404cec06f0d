"""The services: gateway, worker, verifier and command line. None imports another."""
