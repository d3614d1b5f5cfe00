"""The version of this package, where everything below can read it."""

__version__ = "0.1.0"
