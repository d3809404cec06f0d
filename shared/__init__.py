"""What more than one service needs: schemas, settings, job store, queue, artifact store, presets."""
