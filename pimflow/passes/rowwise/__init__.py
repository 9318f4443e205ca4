"""What MD-DP splits and pipelines share: which rows every part makes, and the nodes that make them."""
