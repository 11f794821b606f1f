"""Commands that read runs and draw or list them, while they run or afterwards."""
