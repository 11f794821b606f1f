"""The metrics log and what it takes: sinks, hardware counters, throughput."""
