"""Read-only analyses of graphs: rows, regions, which nodes may leave the host, movements, tensor layouts."""
