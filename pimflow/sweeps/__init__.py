"""Sweeps: models x graphs x machines x policies, on all cores or a cluster, stored on disk, compared by objectives."""
