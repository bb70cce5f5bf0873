"""Products over several processes: their times, their memory, and the volumes of larger groups."""
