"""Graphs as data: vertices and edges in compressed rows, for models that aggregate over them."""

from __future__ import annotations

from pimflow.sparse.graph import Graph as Graph
