"""Starting several workers on this machine, and keeping them."""
