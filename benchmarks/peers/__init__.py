"""Others that do the same job, started and stopped by the benchmark itself."""
