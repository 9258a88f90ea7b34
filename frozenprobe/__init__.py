"""Trustworthy evaluation of frozen text encoders."""
