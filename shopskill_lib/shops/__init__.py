"""Shops: where an episode happens."""
