"""The encoder and its heads, as functions on a dict of weights."""
