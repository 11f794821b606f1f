"""The metrics log: its sinks, and the hardware counters and throughput that it records."""
