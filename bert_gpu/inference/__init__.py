"""A trained model at work on text: hidden states for each line, and words for [MASK]."""
