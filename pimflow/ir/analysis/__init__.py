"""Questions about graphs that change nothing: rows, regions, movements, tensor layouts."""
