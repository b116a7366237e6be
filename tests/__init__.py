"""Tests, one folder a floor."""
