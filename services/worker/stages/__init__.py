"""One file per stage. Each has `run(ctx) -> dict`: from named inputs to files under `ctx.out` and a summary."""
