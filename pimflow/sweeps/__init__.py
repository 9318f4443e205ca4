"""Sweeps: models x graphs x machines x policies, on all cores or a cluster, kept on disk, weighed."""
