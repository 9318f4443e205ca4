"""Questions about graphs that change nothing: rows, regions, what may leave the host, movements, tensor layouts."""
