"""Products over several processes: times, memory, and the rows that larger groups send."""
