"""Streams, problems and step-by-step oracles of Newton channels."""
