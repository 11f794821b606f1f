"""Would a training work on this machine? What is installed, what the machine has, and trials."""
