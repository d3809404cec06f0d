"""`eyrie`: the command line. It speaks only the REST API."""
