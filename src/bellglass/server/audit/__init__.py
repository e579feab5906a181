"""The audit: who did what through the API, with which outcome."""
