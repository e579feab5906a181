"""The SDK's source. The synchronous twin in `_sync/` is generated from it by scripts/unasync.py."""
