"""The SDK: `Sandbox`, `AsyncSandbox` and the values that they take and give. Standard library, httpcore2, jsonschema.

`_async/` is the source and `_sync/` is generated from it; the modules beside them are shared and do no IO with servers.
"""
