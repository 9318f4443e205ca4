"""Shared by several tests: builders of graphs, made-up machines and costs, oracles."""
