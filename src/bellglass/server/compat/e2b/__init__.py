"""What E2B's SDKs speak: the control plane below /compat/e2b, and what their sandboxes serve on ports of their own."""
