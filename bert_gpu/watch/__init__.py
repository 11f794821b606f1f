"""What one reads beside a run or after it."""
