"""What several tests share: builders of graphs, made-up machines and costs, oracles."""
