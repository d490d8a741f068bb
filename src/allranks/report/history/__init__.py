"""What became of each test in earlier runs: one SQLite file, fed by merges."""
